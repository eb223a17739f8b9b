package cronspec_test

import (
	"fmt"
	"time"

	"lockstep/scheduler/cronspec"
)

func ExampleParse() {
	berlin, err := cronspec.LoadZone("Europe/Berlin")
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := cronspec.Parse("30 6 * * 1-5", berlin)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Words())
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) // a Friday
	for range 2 {
		at = s.Next(at)
		fmt.Println(at.Format(time.RFC3339), "=", at.In(s.Location()).Format("Mon 15:04 MST"))
	}
	// Output:
	// at 06:30, Monday to Friday
	// 2026-11-23T05:30:00Z = Mon 06:30 CET
	// 2026-11-24T05:30:00Z = Tue 06:30 CET
}

func ExampleParse_mistake() {
	_, err := cronspec.Parse("0 22-2 * * *", time.UTC)
	fmt.Println(err)
	// Output:
	// schedule "0 22-2 * * *": hour "22-2": the range runs backwards; write 22-23,0-2
}

func ExampleLoadZone() {
	_, err := cronspec.LoadZone("Europe/Berln")
	fmt.Println(err)
	// Output:
	// timezone "Europe/Berln": unknown time zone; did you mean "Europe/Berlin"?
}

func ExampleEvery() {
	s, err := cronspec.Every(15 * time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Next(time.Date(2026, 11, 21, 9, 20, 0, 0, time.UTC)))
	// Output:
	// 2026-11-21 09:30:00 +0000 UTC
}

// On 29 March 2026 Berlin's clocks go from 02:00 to 03:00, on 25 October from 03:00 back to 02:00.
func ExampleSchedule_Next() {
	berlin, err := cronspec.LoadZone("Europe/Berlin")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, expr := range []string{"30 2 * * *", "30 * * * *"} {
		s, err := cronspec.Parse(expr, berlin)
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, night := range []time.Time{
			time.Date(2026, 3, 29, 0, 45, 0, 0, time.UTC),
			time.Date(2026, 10, 25, 0, 15, 0, 0, time.UTC),
		} {
			first := s.Next(night)
			second := s.Next(first)
			fmt.Println(expr, "|", first.In(berlin).Format("2 Jan 15:04 MST"), "|", second.In(berlin).Format("2 Jan 15:04 MST"))
		}
	}
	// Output:
	// 30 2 * * * | 29 Mar 03:00 CEST | 30 Mar 02:30 CEST
	// 30 2 * * * | 25 Oct 02:30 CEST | 26 Oct 02:30 CET
	// 30 * * * * | 29 Mar 03:30 CEST | 29 Mar 04:30 CEST
	// 30 * * * * | 25 Oct 02:30 CEST | 25 Oct 02:30 CET
}
