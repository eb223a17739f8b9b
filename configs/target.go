package configs

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"lockstep/jobs"
)

// Target is where messages about jobs go. Exactly one of URL and Webhook is set. Both have ${...}
// as written: see [ExpandText].
type Target struct {
	Name       string
	URL        string // of a service, in shoutrrr's notation
	Webhook    string
	SecretFile string // with the key that signs requests to the webhook; "": none
	On         []jobs.Event
}

// targetsMost is how many targets a config may have: a worker may send to all of them at a time.
const targetsMost = 32

// defaultOn are the events of a target that names none.
var defaultOn = []jobs.Event{jobs.EventFailed, jobs.EventLost, jobs.EventMissed, jobs.EventLate, jobs.EventRecovered}

// declareTargets adds the targets of a file. If two have the same name, the first is kept.
func (l *loader) declareTargets(s *source) {
	for _, name := range slices.Sorted(maps.Keys(s.file.Notify)) {
		target := s.file.Notify[name]
		if first, ok := l.targets[name]; ok {
			l.errorAt(s, target.key, CodeDuplicateTarget, fmt.Sprintf("target %q is already declared at %s",
				name, first.src.origin(first.key)), "keep one of them")
			continue
		}
		if len(l.targets) == targetsMost {
			l.errorAt(s, target.key, CodeRange, fmt.Sprintf("there are more than %d targets", targetsMost), "remove those that no job names")
		}
		l.targets[name] = target
	}
}

// buildTargets makes the targets of all files, sorted by their names.
func (l *loader) buildTargets() []Target {
	built := make([]Target, 0, len(l.targets))
	for _, name := range slices.Sorted(maps.Keys(l.targets)) {
		f := l.targets[name]
		if f.broken {
			continue
		}
		_, serviceNode := written(f.node, "url")
		webhook, webhookNode := written(f.node, "webhook")
		secret, secretNode := written(f.node, "secret_file")
		switch {
		case serviceNode != nil && webhookNode != nil:
			l.errorAt(f.src, webhook, CodeTarget, fmt.Sprintf("target %q has both url and webhook", name), "keep one of them, and write a target for the other")
		case serviceNode == nil && webhookNode == nil && !slices.Contains(f.likely, "url") && !slices.Contains(f.likely, "webhook"):
			l.errorAt(f.src, f.key, CodeMissingKey, fmt.Sprintf("target %q has neither url nor webhook", name), "write webhook: https://host/path below it, or url: for a service")
		case serviceNode != nil && secretNode != nil:
			l.errorAt(f.src, secret, CodeTarget, fmt.Sprintf("target %q is a service, whose requests are not signed", name), "remove secret_file")
		}
		on := f.On
		if on == nil {
			on = defaultOn
		}
		built = append(built, Target{Name: name, URL: string(valueOr(f.URL, "")), Webhook: string(valueOr(f.Webhook, "")),
			SecretFile: valueOr(f.SecretFile, ""), On: inOrder(on)})
	}
	return built
}

// inOrder returns events once each, in the order of all events.
func inOrder(on []jobs.Event) []jobs.Event {
	return slices.DeleteFunc(jobs.Events(), func(event jobs.Event) bool { return !slices.Contains(on, event) })
}

// notify returns what a job with these targets stores of them. Targets that do not exist were
// reported.
func (l *loader) notify(names []string) []jobs.Notify {
	var list []jobs.Notify
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		f := l.targets[name]
		if f == nil || f.broken {
			continue
		}
		on := f.On
		if on == nil {
			on = defaultOn
		}
		// a refused config concerns no job
		if on = slices.DeleteFunc(inOrder(on), func(event jobs.Event) bool { return event == jobs.EventRefused }); len(on) > 0 {
			list = append(list, jobs.Notify{Target: name, On: on})
		}
	}
	return list
}

// knownTargets checks that the targets at a place are declared. whose names the place.
func (l *loader) knownTargets(names []string, at place, whose string) {
	for i, name := range names {
		if l.targets[name] != nil || name == "" {
			continue
		}
		node := at.node
		if node != nil {
			if node = deref(node); i < len(node.Content) {
				node = deref(node.Content[i])
			}
		}
		hint := fmt.Sprintf("write notify: {%s: {webhook: https://host/path}} at the top level", name)
		if likely := nearest(name, slices.Sorted(maps.Keys(l.targets))); likely != "" {
			hint = didYouMean(likely)
		}
		l.errorAt(at.src, node, CodeUnknownTarget, fmt.Sprintf("%s notifies %s, which is not declared", whose, quote(name)), hint)
	}
}

// services are the services that shoutrrr knows, except those that only make sense for programs:
// for its generic service, lockstep has webhooks.
var services = []string{"bark", "discord", "googlechat", "gotify", "ifttt", "join", "lark", "matrix", "mattermost", "notifiarr", "ntfy",
	"opsgenie", "pagerduty", "pushbullet", "pushover", "rocketchat", "signal", "slack", "smtp", "teams", "telegram", "wecom", "zulip"}

// Services returns the names of the services that a target may have.
func Services() []string { return slices.Clone(services) }

// kindService is what checkServiceURL expects.
const kindService = "service"

// checkServiceURL accepts the URL of a service. It quotes nothing but the scheme: the rest consists
// of secrets.
func checkServiceURL(s string) *fault {
	f := &fault{code: CodeURL, kind: kindService, own: true, want: "the URL of a service, such as slack://...", hint: "the services are " + strings.Join(services, ", ")}
	scheme, rest, found := strings.Cut(s, "://")
	_, err := url.Parse(s)
	switch {
	case !found || strings.ContainsAny(scheme, " /?#@:"):
		f.reason = "it has no scheme"
	case scheme == "http" || scheme == "https" || scheme == "generic":
		f.reason = "it is not a service"
		f.hint = "write webhook: https://host/path"
	case !slices.Contains(services, scheme):
		f.reason = fmt.Sprintf("no service is called %q", scheme)
		if likely := nearest(scheme, services); likely != "" {
			f.hint = didYouMean(likely + "://")
		}
	case err != nil || rest == "":
		f.reason = "it is not a URL"
		f.hint = "percent-encode special characters: / is %2F"
	default:
		return nil
	}
	return f
}

// checkTarget accepts names of targets, which have the shape of a job's name.
func checkTarget(s string) *fault {
	err := jobs.ValidName(s)
	if err == nil {
		return nil
	}
	return &fault{code: CodeName, kind: "name of a target", own: true, want: "a name such as ops",
		reason: strings.TrimPrefix(err.Error(), fmt.Sprintf("job name %q: ", s))}
}
