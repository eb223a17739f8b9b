package cronspec_test

import (
	"testing"
	"time"

	"lockstep/scheduler/cronspec"
)

// BenchmarkNext walks from tick to tick, as the scheduler does.
func BenchmarkNext(b *testing.B) {
	for _, c := range []struct{ name, expr, zone string }{
		{"every-15-minutes", "*/15 * * * *", "Europe/Berlin"},
		{"hourly", "0 * * * *", "UTC"},
		{"daily", "0 2 * * *", "Europe/Berlin"},
		{"workdays", "30 6 * * 1-5", "America/New_York"},
		{"monthly", "0 0 1 * *", "Australia/Lord_Howe"},
		{"yearly", "0 0 1 1 *", "Europe/Berlin"},
		{"every-10-seconds", "*/10 * * * * *", "Asia/Kolkata"},
		{"seconds-at-night", "*/10 * 2 * * *", "Europe/Berlin"},
		{"leap-day", "0 0 29 2 *", "Europe/Berlin"},
		{"leap-day-real-time", "0 * 29 2 *", "Europe/Berlin"},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := mustParse(b, c.expr, c.zone)
			start := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
			at := start
			b.ReportAllocs()
			for b.Loop() {
				if at = s.Next(at); at.Year() > 2036 {
					at = start
				}
			}
		})
	}
	b.Run("interval", func(b *testing.B) {
		s, err := cronspec.Every(15 * time.Minute)
		if err != nil {
			b.Fatal(err)
		}
		at := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
		b.ReportAllocs()
		for b.Loop() {
			at = s.Next(at)
		}
	})
}

// BenchmarkParse measures the cost of one job in a config, including its zone.
func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		mustParse(b, "30 6 * * 1-5", "Europe/Berlin")
	}
}

func mustParse(tb testing.TB, expr, zone string) *cronspec.Schedule {
	tb.Helper()
	s, err := cronspec.Parse(expr, mustLoad(tb, zone))
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func mustLoad(tb testing.TB, zone string) *time.Location {
	tb.Helper()
	loc, err := cronspec.LoadZone(zone)
	if err != nil {
		tb.Fatal(err)
	}
	return loc
}
