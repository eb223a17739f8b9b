package configs

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"lockstep/jobs"
)

// Inherited returns the part of an environment ("NAME=value") that commands inherit according to
// Env. Settings and REDIS_URL are never part of it.
func (w Worker) Inherited(environ []string) []string {
	return slices.DeleteFunc(WithoutSettings(environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return !slices.ContainsFunc(w.Env, func(pattern string) bool {
			beginning, many := strings.CutSuffix(pattern, "*")
			return name == pattern || many && strings.HasPrefix(name, beginning)
		})
	})
}

// WithoutSettings returns an environment without REDIS_URL and without the variables that are
// settings of lockstep, because these may contain credentials.
func WithoutSettings(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return isSetting(name)
	})
}

// isSetting reports whether an environment variable is one that [Load] reads settings from.
func isSetting(name string) bool {
	rest, ours := strings.CutPrefix(name, envPrefix)
	return ours && strings.Contains(rest, "__") || name == "REDIS_URL"
}

// ArgsBytes returns Args in bytes.
func (l Limits) ArgsBytes() int {
	n, err := argsSizes.parse(l.Args)
	if err != nil {
		return jobs.DefaultMaxArgs // the setting was not loaded: Load checks each size
	}
	return int(n)
}

// DefaultHistory is the default of [Limits].History in bytes.
const DefaultHistory = 2 << 30

// HistoryBytes returns History in bytes.
func (l Limits) HistoryBytes() int64 {
	n, err := spaceSizes.parse(l.History)
	if err != nil {
		return DefaultHistory // the setting was not loaded: Load checks each size
	}
	return n
}

// GraceTime returns Grace in the form of locks.Options: 0 for auto.
func (l Locks) GraceTime() time.Duration {
	d, _ := time.ParseDuration(l.Grace) // it was checked; auto is not a duration
	return d
}

// Networks returns Proxies as networks. An address is a network of one address.
func (a Auth) Networks() []netip.Prefix {
	networks := make([]netip.Prefix, len(a.Proxies))
	for i, text := range a.Proxies {
		networks[i], _ = parseNetwork(text) // it was checked
	}
	return networks
}

// defaultSettings is the lowest layer.
func defaultSettings() layer {
	defaults := newLayer()
	for key, setting := range settingKeys() {
		defaults.values[key] = setting.field.defaultValue().Interface()
	}
	return defaults
}

// defaultValue returns the default of a key. It panics on an invalid tag, which is a mistake in
// this package.
func (f *field) defaultValue() reflect.Value {
	t, text := valueType(f.typ), f.rules.initial
	if text == "" {
		return reflect.Zero(t)
	}
	value, wrong := convertText(t, &f.rules, text)
	if wrong != nil {
		panic(fmt.Sprintf("configs: default %q of %s: %s", text, f.name, wrong.reason))
	}
	return value
}

// SafeURL returns the URL in the form that may be shown: see [jobs.SafeURL].
func (r Redis) SafeURL() string { return jobs.SafeURL(r.URL) }

// String returns the settings without the password.
func (r Redis) String() string { return fmt.Sprintf("%s (namespace %s)", r.SafeURL(), r.Namespace) }

// LogValue keeps the password out of logs.
func (r Redis) LogValue() slog.Value {
	return slog.GroupValue(slog.String("url", r.SafeURL()), slog.String("namespace", r.Namespace))
}

// Password returns the text of PasswordFile without trailing newlines, or "" if there is none. Call
// it for each new connection, because a mounted secret changes.
func (r Redis) Password() (string, error) {
	if r.PasswordFile == "" {
		return "", nil
	}
	password, err := readSecret(r.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("redis.password_file %s: %w", r.PasswordFile, err)
	}
	return password, nil
}

// SignKeys reads the keys that sign definitions, or returns nil if there are none. The error names
// the setting.
func (r Redis) SignKeys() (*jobs.Keys, error) {
	var list [][]byte
	if r.SignKey != "" {
		keys, err := jobs.NewKeys(r.Namespace, []byte(strings.TrimSuffix(r.SignKey, "\n")))
		if err != nil {
			return nil, fmt.Errorf("redis.sign_key: %w", err)
		}
		return keys, nil
	}
	for _, path := range r.SignKeyFile {
		key, err := readSecret(path)
		if err == nil {
			_, err = jobs.NewKeys(r.Namespace, []byte(key))
		}
		if err != nil {
			return nil, fmt.Errorf("redis.sign_key_file %s: %w", path, err)
		}
		list = append(list, []byte(key))
	}
	return jobs.NewKeys(r.Namespace, list...)
}

// ExposedKeys returns the files of SignKeyFile that other users of this host can read or write but
// should not. [Options].Rights warns of the same files.
func (r Redis) ExposedKeys() []string {
	return slices.DeleteFunc(slices.Clone(r.SignKeyFile), func(path string) bool {
		info, err := os.Stat(path)
		return err != nil || secretRights(info, os.Geteuid(), "redis.sign_key_file") == nil
	})
}

// setting is one key of [Settings].
type setting struct {
	path  []string // admin, auth, mode
	key   string   // admin.auth.mode
	index []int    // of its field in Settings
	field *field
}

// of returns the value of the setting.
func (s setting) of(settings Settings) reflect.Value {
	return reflect.ValueOf(settings).FieldByIndex(s.index)
}

// settingList has all settings, in the order of the file types.
var settingList = sync.OnceValue(func() []setting { return settingsOf(nil, reflect.TypeFor[Settings](), setting{}) })

// settingsOf appends the settings below a struct to a list. above leads to the struct.
func settingsOf(list []setting, t reflect.Type, above setting) []setting {
	for _, f := range fieldsOf(t).list {
		path := append(slices.Clone(above.path), f.name)
		one := setting{path, strings.Join(path, "."), append(slices.Clone(above.index), f.index...), f}
		if f.typ.Kind() == reflect.Struct {
			list = settingsOf(list, f.typ, one)
		} else {
			list = append(list, one)
		}
	}
	return list
}

// settingKeys has all settings by key.
var settingKeys = sync.OnceValue(func() map[string]setting {
	keys := make(map[string]setting)
	for _, s := range settingList() {
		keys[s.key] = s
	}
	return keys
})

// layer has the settings of one source, by key.
type layer struct {
	values  map[string]any
	origins map[string]Origin
}

func newLayer() layer { return layer{make(map[string]any), make(map[string]Origin)} }

func (l layer) set(key string, value any, origin Origin) {
	l.values[key], l.origins[key] = value, origin
}

// loadSettings merges the layers. origins has the source of each key that was set.
func (l *loader) loadSettings(o Options) (s Settings, origins map[string]Origin, err error) {
	layers := []layer{defaultSettings()}
	for _, src := range l.sources {
		layers = append(layers, src.settings)
	}
	layers = append(layers, l.envLayer(o), l.flagLayer(o))
	// A delimiter in a queue's name is harmless: koanf only splits map[string]any, and Queues has
	// another type.
	ko := koanf.New(".")
	origins = make(map[string]Origin)
	for _, layer := range layers {
		if err := ko.Load(confmap.Provider(layer.values, "."), nil); err != nil {
			return s, nil, fmt.Errorf("merge settings: %w", err)
		}
		maps.Copy(origins, layer.origins)
	}

	// All values were checked at their sources.
	err = ko.UnmarshalWithConf("", &s, koanf.UnmarshalConf{Tag: "yaml", DecoderConfig: &mapstructure.DecoderConfig{
		ErrorUnused: true,
		MatchName:   func(key, field string) bool { return key == field },
	}})
	if err != nil {
		return s, nil, fmt.Errorf("decode settings: %w", err)
	}
	_, s.Admin.ListenSet = origins["admin.listen"]
	return s, origins, nil
}

// given reports whether a flag for the setting was given.
func given(o Options, key string) bool {
	for name, k := range o.FlagKeys {
		if k == key && o.Flags != nil && o.Flags.Changed(name) {
			return true
		}
	}
	return false
}

const envPrefix = "LOCKSTEP_"

// envLayer reads REDIS_URL, LOCKSTEP_REDIS__URL and similar variables.
func (l *loader) envLayer(o Options) layer {
	env := newLayer()
	// REDIS_URL may be set for another program, so it yields to our own variable and to a flag.
	if value := l.env["REDIS_URL"]; value != "" && l.env["LOCKSTEP_REDIS__URL"] == "" && !given(o, "redis.url") {
		l.setText(env, "redis.url", value, Origin{Variable: "REDIS_URL"})
	}
	for _, name := range slices.Sorted(maps.Keys(l.env)) {
		// sorted, so that problems have a stable order
		rest, ours := strings.CutPrefix(name, envPrefix)
		if !ours || !strings.Contains(rest, "__") || l.env[name] == "" {
			continue
		}
		key := strings.ToLower(strings.ReplaceAll(rest, "__", "."))
		if _, known := settingKeys()[key]; known {
			l.setText(env, key, l.env[name], Origin{Variable: name})
		} else {
			l.unknownSetting(name, key)
		}
	}
	return env
}

// variableOf returns the environment variable of a setting.
func variableOf(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "__"))
}

func (l *loader) unknownSetting(name, key string) {
	p := Problem{Origin: Origin{Variable: name}, Severity: SeverityWarning, Code: CodeUnknownSetting,
		Message: fmt.Sprintf("there is no setting %q", key)}
	section, _, _ := strings.Cut(key, ".")
	above, name := key[:strings.LastIndexByte(key, '.')+1], key[strings.LastIndexByte(key, '.')+1:]
	inside := slices.IndexFunc(settingList(), func(s setting) bool { return strings.HasPrefix(s.key, key+".") })
	var beside []string // the settings in the same section
	for _, s := range settingList() {
		if rest, ok := strings.CutPrefix(s.key, above); ok {
			beside = append(beside, rest)
		}
	}
	likely := nearest(key, slices.Sorted(maps.Keys(settingKeys())))
	if near := nearest(name, beside); near != "" {
		likely = above + near
	}
	switch {
	case strings.HasPrefix(key, "worker.queues."):
		p.Hint = "write LOCKSTEP_WORKER__QUEUES=a=6,b=1"
	case inside >= 0:
		p.Hint = "it has settings below it, such as " + variableOf(settingList()[inside].key)
	case likely != "":
		p.Hint = didYouMean(variableOf(likely))
	case section == "jobs" || section == "defaults":
		p.Hint = "jobs are defined in files only"
	}
	l.add(p, "")
}

// flagLayer reads the flags that were given.
func (l *loader) flagLayer(o Options) layer {
	flags := newLayer()
	if o.Flags == nil {
		return flags
	}
	o.Flags.VisitAll(func(f *pflag.Flag) {
		key, ok := o.FlagKeys[f.Name]
		if !ok || !f.Changed {
			return
		}
		setting, ok := settingKeys()[key]
		if !ok {
			panic("configs: flag " + f.Name + " is for an unknown setting " + key)
		}
		origin := Origin{Flag: f.Name}
		value := reflect.ValueOf(posflag.FlagVal(o.Flags, f))
		if value.Type() != setting.field.typ {
			l.setText(flags, key, f.Value.String(), origin)
		} else if l.check(value, key, f.Value.String(), origin) {
			flags.set(key, value.Interface(), origin)
		}
	})
	return flags
}

func valueType(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// setText adds a setting given as text to a layer. If the text is wrong, it adds a problem instead.
func (l *loader) setText(to layer, key, s string, origin Origin) {
	setting := settingKeys()[key]
	value, f := convertText(setting.field.typ, &setting.field.rules, s)
	if f != nil {
		l.settingFault(f, key, s, origin)
	} else if l.check(value, key, s, origin) {
		to.set(key, value.Interface(), origin)
	}
}

// convertText is [convert], extended to texts with several values.
func convertText(t reflect.Type, r *rules, s string) (reflect.Value, *fault) {
	switch t.Kind() {
	case reflect.Map:
		return parseWeights(s)
	case reflect.Slice:
		var list []string
		for element := range strings.SplitSeq(s, ",") {
			list = append(list, strings.TrimSpace(element))
		}
		return reflect.ValueOf(list), nil
	}
	return convert(t, r, s, false)
}

// check checks a typed value against the rules of its setting.
func (l *loader) check(value reflect.Value, key, shown string, origin Origin) bool {
	r := &settingKeys()[key].field.rules
	good := true
	report := func(f *fault, key, shown string) {
		if f != nil {
			l.settingFault(f, key, shown, origin)
			good = false
		}
	}
	switch value.Kind() {
	case reflect.Map:
		if value.Len() < r.size {
			report(&fault{code: CodeEmpty, kind: "value", reason: "it is empty", hint: "name at least one"}, key, shown)
		}
		weights := value.Interface().(map[string]int)
		for _, name := range slices.Sorted(maps.Keys(weights)) {
			if f := checks[r.keys](name); f != nil {
				report(f, key, name)
			} else {
				report(checkValue(reflect.ValueOf(weights[name]), r), key+"."+name, strconv.Itoa(weights[name]))
			}
		}
	case reflect.Slice:
		for _, text := range value.Interface().([]string) {
			report(checkString(text, r), key, text)
		}
	default:
		report(checkValue(value, r), key, shown)
	}
	return good
}

func (l *loader) settingFault(f *fault, key, shown string, origin Origin) {
	setting, ok := settingKeys()[key] // not for a key of a map
	l.authWrong = l.authWrong || strings.HasPrefix(key, "admin.")
	message, hint := f.sentence(shown, "for "+key, false, ok && setting.field.rules.secret)
	l.add(Problem{Origin: origin, Severity: SeverityError, Code: f.code, Message: message, Hint: hint}, message)
}

// parseWeights parses "critical=6,default=3", the form of a map outside of files.
func parseWeights(s string) (reflect.Value, *fault) {
	weights := make(map[string]int)
	for pair := range strings.SplitSeq(s, ",") {
		name, number, ok := strings.Cut(strings.TrimSpace(pair), "=")
		weight, err := strconv.Atoi(number)
		if _, twice := weights[name]; !ok || err != nil || twice {
			return reflect.Value{}, &fault{code: CodeType, kind: "value",
				reason: "it must be a list of different names, each with a whole number", hint: "write critical=6,default=3"}
		}
		weights[name] = weight
	}
	return reflect.ValueOf(weights), nil
}
