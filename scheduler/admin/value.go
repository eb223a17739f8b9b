package admin

import (
	"encoding/json"
	"math"
	"strconv"
	"time"
)

// Instant is a moment in RFC 3339, UTC, with milliseconds. The zero time is null.
type Instant struct{ time.Time }

// String returns the text of the JSON value, "" for the zero time.
func (t Instant) String() string { return utc(t.Time, "2006-01-02T15:04:05.000Z") }

// MarshalJSON writes a text or null.
func (t Instant) MarshalJSON() ([]byte, error) { return Text(t.String()).MarshalJSON() }

// TickTime is the due time of a tick, in RFC 3339, UTC, without a fraction. The zero time is null.
type TickTime struct{ time.Time }

// String returns the text of the JSON value, "" for the zero time.
func (t TickTime) String() string { return utc(t.Time, "2006-01-02T15:04:05Z") }

// MarshalJSON writes a text or null.
func (t TickTime) MarshalJSON() ([]byte, error) { return Text(t.String()).MarshalJSON() }

func utc(t time.Time, layout string) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(layout)
}

// Text is a text that may be missing: "" is null.
type Text string

// MarshalJSON writes a text or null.
func (t Text) MarshalJSON() ([]byte, error) {
	if t == "" {
		return []byte("null"), nil
	}
	return json.Marshal(string(t))
}

// Seconds is a duration that is a number of seconds in JSON, to the millisecond.
type Seconds time.Duration

// MarshalJSON writes a number.
func (s Seconds) MarshalJSON() ([]byte, error) {
	ms := time.Duration(s).Round(time.Millisecond).Milliseconds()
	return strconv.AppendFloat(nil, float64(ms)/1000, 'f', -1, 64), nil
}

// UnmarshalJSON reads what [Seconds.MarshalJSON] wrote.
func (s *Seconds) UnmarshalJSON(text []byte) error {
	var seconds float64
	if err := json.Unmarshal(text, &seconds); err != nil {
		return err
	}
	*s = Seconds(math.Round(seconds*1000)) * Seconds(time.Millisecond)
	return nil
}

// seconds returns nil, which is null, for no duration.
func seconds(d time.Duration) *Seconds {
	if d == 0 {
		return nil
	}
	s := Seconds(d)
	return &s
}

// Age describes how long ago something was, or how much time is left: in whole seconds, and in at
// most two units, such as 4s, 3m 2s, 5h 10m or 2d 3h.
func Age(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	units := []struct {
		letter string
		length time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}
	for i, u := range units {
		if d < u.length && i < len(units)-1 {
			continue
		}
		text := strconv.Itoa(int(d/u.length)) + u.letter
		if i+1 < len(units) {
			if rest := d % u.length / units[i+1].length; rest > 0 {
				text += " " + strconv.Itoa(int(rest)) + units[i+1].letter
			}
		}
		return text
	}
	return ""
}

// Span describes how long something took. It is [Age], but more exact for a short time: 31ms, 4.3s.
func Span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return Age(d)
}
