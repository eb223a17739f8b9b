package web

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// A malformed request is the client's mistake: sending it again gives the same error.
func TestJunkInRequestsIsNoOutageOfRedis(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := newConsole(t, rdb)
		const v1 = "/api/v1/"
		encoded := base64.RawURLEncoding.EncodeToString
		for path, want := range map[string]int{
			v1 + "audit?cursor=" + encoded([]byte("junk")):                      400,
			v1 + "audit?cursor=" + encoded([]byte("-")):                         400,
			v1 + "audit?cursor=" + encoded([]byte("1-1 1")):                     400,
			v1 + "audit?cursor=" + encoded([]byte("99999999999999999999999-0")): 400,
			v1 + "audit?cursor=" + encoded([]byte("1-99999999999999999999999")): 400,
			v1 + "audit?cursor=" + encoded([]byte("0-0")):                       400,
			v1 + "audit?cursor=%ff":                                             400,
			v1 + "audit?limit=0":                                                400,
			v1 + "audit?limit=1001":                                             400,
			v1 + "runs?cursor=" + encoded([]byte("junk")):                       400,
			v1 + "runs?cursor=" + encoded([]byte(`{"f":true,"t":1,"i":"x"}{}`)): 400,
			v1 + "runs?cursor=" + encoded([]byte(`{"f":1}`)):                    400,
			v1 + "runs?state=%00":                                               400,
			v1 + "runs?job=%00":                                                 404,
			v1 + "runs?job=" + url.QueryEscape("nightly\x1f\xff"):               404,
			v1 + "jobs/nightly/ticks?cursor=" + encoded([]byte("\xff\x00")):     0,
			v1 + "jobs/%ff%00/ticks":                                            404,
			v1 + "jobs/%00":                                                     404,
			v1 + "jobs/nightly/explain?at=yesterday":                            400,
			v1 + "jobs/nightly/explain?at=9999-12-31T23:59:59Z":                 0,
			v1 + "jobs/nightly/explain?at=0000-01-01T00:00:00Z":                 0,
			v1 + "jobs/%ff/explain":                                             404,
			v1 + "runs/%00":                                                     404,
			v1 + "runs/nightly%23%ff%1f":                                        404,
			v1 + "runs/%7B%7D%23x/output":                                       404,
			v1 + "locks/%00":                                                    0,
			v1 + "locks/a%1fb":                                                  0,
			v1 + "locks/%ff":                                                    0,
			v1 + "locks?cursor=" + encoded([]byte("\x00")):                      0,
			v1 + "workers/%00":                                                  404,
			v1 + "workers?cursor=" + encoded([]byte("\xff")):                    0,
			v1 + "waits?cursor=" + encoded([]byte("\xff")):                      0,
			v1 + "jobs?cursor=" + encoded([]byte("\xff")):                       0,
			v1 + "jobs?note=junk":                                               400,
		} {
			w := get(c.server, path)
			if want == 0 && w.Code >= http.StatusInternalServerError || want != 0 && w.Code != want {
				t.Errorf("GET %s: got %d, %s, want %d", path, w.Code, w.Body, want)
			}
		}
		for path, want := range map[string]int{
			"jobs/%00/pause": 404, "jobs/%ff/run": 404, "runs/%00/cancel": 404, "runs/%1f%23/retry": 404, "queues/%00/pause": 404,
			"queues/%7B%7D/resume": 404, "workers/%00/drain": 404,
		} {
			c.post(v1+path, "", want)
		}
		for body, want := range map[string]int{
			`{"job": "nightly", "id": "\u0000"}`: 400, `{"job": "nightly", "in": "2562047h"}`: 201, `{"job": "nightly", "in": "-1s"}`: 400,
			`{"job": "\u0000"}`: 404, `{"job": "nightly", "at": "9999-12-31T23:59:59Z"}`: 201, `{"job": "nightly", "at": "0001-01-01T00:00:00Z"}`: 201,
			`{"job": "nightly", "args": "\u001f"}`: 201,
		} {
			c.post(v1+"enqueue", body, want)
		}
	})
}
