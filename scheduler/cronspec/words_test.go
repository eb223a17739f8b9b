package cronspec_test

import (
	"testing"
	"time"

	"lockstep/scheduler/cronspec"
)

func TestWords(t *testing.T) {
	for expr, want := range map[string]string{
		"0 2 * * *":          "at 02:00, every day",
		"@midnight":          "at 00:00, every day",
		"30 6 * * 1-5":       "at 06:30, Monday to Friday",
		"5 30 2 * * *":       "at 02:30:05, every day",
		"0 6,18 * * *":       "at 06:00 and 18:00, every day",
		"0,30 8 * * 6":       "at 08:00 and 08:30, every Saturday",
		"15 */6 * * *":       "at 00:15, 06:15, 12:15 and 18:15, every day",
		"* * * * * *":        "every second",
		"*/10 * * * * *":     "every 10 seconds",
		"* * * * *":          "every minute",
		"30 * * * * *":       "every minute from 00:00:30",
		"*/15 * * * *":       "every 15 minutes",
		"0,15,30,45 * * * *": "every 15 minutes",
		"5/15 * * * *":       "every 15 minutes from 00:05",
		"*/7 * * * *":        "at minute 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour",
		"5,20 * * * *":       "at minute 5 and 20 of every hour",
		"@hourly":            "every hour",
		"15 * * * *":         "at minute 15 of every hour",
		"0 */2 * * *":        "every 2 hours",
		"30 */2 * * *":       "every 2 hours from 00:30",
		"0 */5 * * *":        "every 5 hours from 00:00 to 20:00, every day",
		"0 0-23 * * *":       "every hour from 00:00 to 23:00, every day",
		"* 0 * * *":          "every minute from 00:00 to 00:59, every day",
		"*/15 9-17 * * 1-5":  "every 15 minutes from 09:00 to 17:45, Monday to Friday",
		"*/10 * 2 * * *":     "every 10 seconds from 02:00 to 02:59:50, every day",
		"*/5 * * * 6,0":      "every 5 minutes, Saturday and Sunday",

		"0 0 * * 7":      "at 00:00, every Sunday",
		"0 0 * * 5-7":    "at 00:00, Friday to Sunday",
		"0 0 * * 1,3,5":  "at 00:00, Monday, Wednesday and Friday",
		"0 0 * * 0,1,2":  "at 00:00, Monday, Tuesday and Sunday",
		"0 0 * * 0-7":    "at 00:00, every day",
		"0 0 13 * 0-6":   "at 00:00, every day",
		"0 0 1-31 * 1":   "at 00:00, every day",
		"@monthly":       "at 00:00, on the 1st of every month",
		"0 0 2,3,11 * *": "at 00:00, on the 2nd, 3rd and 11th of every month",
		"0 0 31 * *":     "at 00:00, on the 31st of every month that has one",
		"0 0 31 1,3 *":   "at 00:00, on the 31st of January and March",
		"0 0 29 2 *":     "at 00:00, on the 29th of February in leap years",
		"0 0 22,23 2 *":  "at 00:00, on the 22nd and 23rd of February",
		"@yearly":        "at 00:00, on the 1st of January",
		"0 0 1 */3 *":    "at 00:00, on the 1st of January, April, July and October",
		"0 0 1 3-10 *":   "at 00:00, on the 1st of every month from March to October",
		"0 8 * 1,7 *":    "at 08:00, every day in January and July",
		"0 8 * 3-10 1-5": "at 08:00, Monday to Friday from March to October",
		"0 0 13 * 5":     "at 00:00, on the 13th of every month, and also every Friday",

		// These take longer to describe than to list.
		"0 0 */2 * *":       "",
		"0 0 15,31 * *":     "",
		"0 0 13 3 5":        "",
		"0 0 */2 * 1":       "",
		"5,7 9-17 * * *":    "",
		"0,20 */2 * * *":    "",
		"1,2,4 * * * * *":   "",
		"0-12,14 * * * *":   "",
		"0 1,2,4,8,9 * * *": "",
	} {
		s, err := cronspec.Parse(expr, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Words(); got != want {
			t.Errorf("%s: got %q, want %q", expr, got, want)
		}
	}
}

func TestWordsOfIntervals(t *testing.T) {
	for interval, want := range map[time.Duration]string{
		time.Second:      "every second",
		90 * time.Second: "every 90 seconds",
		time.Minute:      "every minute",
		15 * time.Minute: "every 15 minutes",
		time.Hour:        "every hour",
		36 * time.Hour:   "every 36 hours",
	} {
		s, err := cronspec.Every(interval)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Words(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
