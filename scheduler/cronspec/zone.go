package cronspec

import (
	_ "embed"
	"fmt"
	"math"
	"regexp"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // a scratch image has no zone files

	"github.com/agnivade/levenshtein"
)

// zoneNames lists the zones that every binary contains, one per line. TestZoneNamesAreThoseOfGo
// writes it.
//
//go:embed zones.txt
var zoneNames string

// zones caches loaded zones, name to *time.Location: reading a zone file takes longer than parsing
// a hundred schedules, and 100,000 jobs share a handful of zones. It has at most as many entries as
// zoneNames has lines.
var zones sync.Map

// LoadZone returns the time zone with the given IANA name, such as "Europe/Berlin". The empty name
// is UTC.
//
// It accepts only names that every lockstep binary contains, so a config that loads on one host
// loads on all. It refuses "Local" for the same reason: replicas would disagree on the ticks.
func LoadZone(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	if loc, ok := zones.Load(name); ok {
		return loc.(*time.Location), nil
	}
	if !isZone(name) {
		problem, hint := explainZone(name)
		return nil, &Error{Key: "timezone", Text: name, Part: name, Problem: problem, Hint: hint}
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, &Error{Key: "timezone", Text: name, Part: name, Problem: "its zone file cannot be read: " + err.Error(),
			Hint: "repair the system's zone files, or remove them: lockstep includes its own"}
	}
	kept, _ := zones.LoadOrStore(name, loc)
	return kept.(*time.Location), nil
}

// ZoneNames returns the names that [LoadZone] accepts, sorted.
func ZoneNames() []string { return strings.Fields(zoneNames) }

func isZone(name string) bool {
	for known := range strings.Lines(zoneNames) {
		if name+"\n" == known {
			return true
		}
	}
	return false
}

// meant maps common spellings, in lower case, to the zone that they mean: abbreviations that are
// not the name of a zone, and large cities that have no zone of their own. Ambiguous ones (IST) are
// left out.
var meant = map[string]string{
	"pst": "America/Los_Angeles", "pdt": "America/Los_Angeles", "pt": "America/Los_Angeles",
	"mdt": "America/Denver", "mt": "America/Denver",
	"cdt": "America/Chicago", "ct": "America/Chicago",
	"edt": "America/New_York", "et": "America/New_York",
	"bst": "Europe/London", "west": "Europe/Lisbon", "eest": "Europe/Helsinki", "msk": "Europe/Moscow",
	"cest": "Europe/Berlin", "mez": "Europe/Berlin", "mesz": "Europe/Berlin",
	"jst": "Asia/Tokyo", "kst": "Asia/Seoul", "sgt": "Asia/Singapore", "hkt": "Asia/Hong_Kong",
	"aest": "Australia/Sydney", "aedt": "Australia/Sydney", "awst": "Australia/Perth",
	"nzst": "Pacific/Auckland", "nzdt": "Pacific/Auckland", "z": "UTC",

	"boston": "America/New_York", "washington": "America/New_York", "miami": "America/New_York",
	"houston": "America/Chicago", "dallas": "America/Chicago", "san_francisco": "America/Los_Angeles",
	"seattle": "America/Los_Angeles", "montreal": "America/Toronto", "rio_de_janeiro": "America/Sao_Paulo",
	"frankfurt": "Europe/Berlin", "hamburg": "Europe/Berlin", "munich": "Europe/Berlin", "geneva": "Europe/Zurich",
	"milan": "Europe/Rome", "barcelona": "Europe/Madrid", "edinburgh": "Europe/London",
	"mumbai": "Asia/Kolkata", "delhi": "Asia/Kolkata", "new_delhi": "Asia/Kolkata", "bangalore": "Asia/Kolkata",
	"beijing": "Asia/Shanghai", "shenzhen": "Asia/Shanghai", "osaka": "Asia/Tokyo", "abu_dhabi": "Asia/Dubai",
}

var (
	separators   = strings.NewReplacer(" ", "_", "-", "_", `\`, "/")
	offsetShape  = regexp.MustCompile(`^(?i:utc|gmt|z)? ?([+-])(\d{1,2})(?::?(\d\d))?$`)
	placeExample = `write the name of a place, such as "Europe/Berlin"`
)

// explainZone explains why a name is not a zone, and suggests one.
func explainZone(name string) (problem, hint string) {
	plain := strings.ToLower(separators.Replace(strings.TrimSpace(name)))
	switch {
	case plain == "local" || plain == "localtime":
		return "every host has its own, so replicas would disagree on the ticks", placeExample
	case strings.HasPrefix(plain, "right/"), strings.HasPrefix(plain, "posix/"):
		return "not on every host", fmt.Sprintf("write %q", name[strings.Index(name, "/")+1:])
	}
	if m := offsetShape.FindStringSubmatch(strings.TrimSpace(name)); m != nil {
		problem = "an offset is not a time zone: it has no daylight saving time"
		turned := map[string]string{"+": "-", "-": "+"}[m[1]] // in these names, west is positive
		hours := strings.TrimPrefix(m[2], "0")
		if fixed := "Etc/GMT" + turned + hours; (m[3] == "" || m[3] == "00") && isZone(fixed) {
			return problem, placeExample + fmt.Sprintf(`, or %q (the sign is correct: these names invert it)`, fixed)
		}
		return problem, placeExample
	}
	problem = "unknown time zone"
	_, place := cutLast(plain)
	known := meant[place]
	if known == "" {
		known = nearestZone(plain)
	}
	if known == "" {
		return problem, placeExample
	}
	return problem, fmt.Sprintf("did you mean %q?", known)
}

// nearestZone returns the zone nearest to a lower-case name: the same name apart from case and
// separators, the same place in another region, or a name with few wrong letters. It returns "" if
// none is near.
func nearestZone(plain string) string {
	const longest = 60 // bytes; all zone names are much shorter
	if len(plain) > longest {
		return ""
	}
	best, least := "", longest
	consider := func(known string, distance, limit int) {
		if distance <= limit && distance < least {
			best, least = known, distance
		}
	}
	_, place := cutLast(plain)
	limit, placeLimit := len(plain)/6, len(place)/4
	for known := range strings.Lines(zoneNames) {
		known = strings.TrimSuffix(known, "\n")
		lower := strings.ToLower(separators.Replace(known))
		switch {
		case lower == plain:
			return known
		case strings.HasPrefix(lower, plain+"/"):
			// The name is a region, so any place in it may be meant.
			return ""
		}
		consider(known, 2*levenshtein.ComputeDistance(plain, lower), 2*min(limit, max(placeLimit, 1)))
		if region, knownPlace := cutLast(lower); region != "" && region != "etc" {
			// Odd, so that with an equal number of wrong letters the right region decides.
			consider(known, 2*levenshtein.ComputeDistance(place, knownPlace)+1, 2*placeLimit+1)
		}
	}
	return best
}

// cutLast splits a zone's name at its last slash.
func cutLast(name string) (region, place string) {
	i := strings.LastIndexByte(name, '/')
	return name[:max(i, 0)], name[i+1:]
}

// stretch returns the offset of the schedule's zone at the instant u, and an instant after u until
// which the offset cannot change, all in seconds.
func (s *Schedule) stretch(u int64) (offset, until int64) {
	const forever = math.MaxInt64 / 2
	t := time.Unix(u, 0).In(s.loc)
	_, seconds := t.Zone()
	_, bound := t.ZoneBounds()
	if bound.IsZero() {
		return int64(seconds), forever
	}
	until = bound.Unix()
	if until <= u {
		// After the end of the zone's table, where a rule makes the changes, package time ends a
		// year after 365 days, and on 31 December of a leap year it returns a bound in the past. No
		// change happens on that day after the bound, so the end of the day is a valid bound.
		until = u - modulo(u, 24*3600) + 24*3600
	}
	return int64(seconds), until
}
