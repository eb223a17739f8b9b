package web

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"lockstep/locks/space"
	"lockstep/scheduler/admin/fakes"
)

func TestHoldsOfAWindowAreListedAndGrouped(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.KeptSince = fakes.Noon.Add(-time.Hour)
	f.Ends = []space.Entry{{Position: "1", ID: "web-9.00000001.1", Session: "web-9.00000001", Token: 7, Since: fakes.Noon.Add(-time.Hour),
		To: fakes.Noon.Add(-time.Minute), Ended: space.EndCrashed, Names: []string{"bill:1001"}}}
	s := newServer(t, f)
	l := getList(t, s, "/api/v1/holds?lock=bill:1001&kind=hold&until=2026-11-21T11:59:00Z&since=2026-11-21T11:00:00Z")
	if len(l.Items) != 1 || l.Items[0]["ended"] != "crashed" || l.Items[0]["host"] != "web-9" || l.NextCursor != nil {
		t.Errorf("got %+v", l)
	}
	var grouped struct {
		Items []struct {
			Group   string           `json:"group"`
			Entries []map[string]any `json:"entries"`
		} `json:"items"`
		KeptSince string `json:"kept_since"`
		At        string `json:"at"`
	}
	if err := json.Unmarshal(get(s, "/api/v1/holds?lock=bill:1001&kind=hold&group=worker").Body.Bytes(), &grouped); err != nil {
		t.Fatal(err)
	}
	if len(grouped.Items) != 2 || grouped.Items[0].Group != "web-2.p91qd3f7" || grouped.Items[0].Entries[0]["to"] != nil ||
		grouped.KeptSince != "2026-11-21T11:00:00.000Z" || grouped.At != "2026-11-21T12:00:00.000Z" {
		t.Errorf("got %+v", grouped)
	}
	first := getList(t, s, "/api/v1/holds?lock=bill:1001&kind=hold&limit=1")
	if len(first.Items) != 1 || first.NextCursor == nil {
		t.Fatalf("got %+v", first)
	}
	if second := getList(t, s, "/api/v1/holds?lock=bill:1001&kind=hold&limit=1&cursor="+*first.NextCursor); len(second.Items) != 1 || second.NextCursor != nil {
		t.Errorf("got %+v", second)
	}
	for query, want := range map[string]string{
		"since=14:00": "RFC 3339", "until=x": "RFC 3339", "group=host": "worker, lock or job", "kind=x": "hold or wait", "cursor=e30": "cursor", "limit=0": "1 to 1000",
		"since=2026-11-21T12:00:00Z&until=2026-11-21T11:00:00Z": "before since", "state=x": "unknown parameter",
	} {
		if w := get(s, "/api/v1/holds?"+query); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: got %d: %s, want %q", query, w.Code, w.Body, want)
		}
	}
}
