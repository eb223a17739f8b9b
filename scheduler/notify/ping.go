package notify

import (
	"context"
	"hash/fnv"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"lockstep/jobs"
)

// Pinger sends pings to dead man's switches: see the package documentation. Its method Ping does
// not wait, and [Pinger.Run] sends.
type Pinger struct {
	client *Client
	log    *slog.Logger
	lanes  [pingLanes]chan ping // those of one URL keep their order
}

const (
	pingLanes   = 4
	pingsMost   = 64 // that wait in a lane
	pingLimit   = 5 * time.Second
	pingRetries = 1
)

// A Signal is what a ping reports.
type Signal string

const (
	SignalStart   Signal = "/start"
	SignalSuccess Signal = ""
	SignalFail    Signal = "/fail"
)

type ping struct {
	job    string
	url    string
	signal Signal
	text   string
}

// NewPinger returns a pinger that sends through the connections of a client.
func NewPinger(client *Client, log *slog.Logger) *Pinger {
	p := &Pinger{client: client, log: log}
	for i := range p.lanes {
		p.lanes[i] = make(chan ping, pingsMost)
	}
	return p
}

// Ping sends a signal of a job later. address is the job's ping, with its ${...}; text is for a
// failure. If too many pings wait, it is left out.
func (p *Pinger) Ping(job, address string, signal Signal, text string) {
	hash := fnv.New32a()
	_, _ = io.WriteString(hash, address) // cannot fail
	select {
	case p.lanes[hash.Sum32()%pingLanes] <- ping{job, address, signal, text}:
	default:
		p.log.Warn("a ping was left out: too many others wait", "job", job)
	}
}

// Run sends pings until ctx ends; then it still sends those that wait, for a moment.
func (p *Pinger) Run(ctx context.Context) error {
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(stopLimit, cancel) })()
	var lanes sync.WaitGroup
	defer lanes.Wait()
	for _, lane := range p.lanes {
		lanes.Go(func() {
			for {
				select {
				case <-ctx.Done():
					for requests.Err() == nil {
						select {
						case one := <-lane:
							p.send(requests, one)
						default:
							return
						}
					}
					return
				case one := <-lane:
					p.send(requests, one)
				}
			}
		})
	}
	return nil
}

func (p *Pinger) send(ctx context.Context, one ping) {
	address, secrets, err := p.client.expand(one.url)
	if err != nil {
		p.log.WarnContext(ctx, "a ping could not be sent", "job", one.job, "error", err)
		return
	}
	redact := jobs.NewRedactor(append(secrets, wordsOf(address)...))
	for try := 0; ; try++ {
		why := p.try(ctx, address, one)
		if why == "" {
			return
		}
		if try == pingRetries || ctx.Err() != nil {
			p.log.WarnContext(ctx, "a ping could not be sent", "job", one.job, "error", redact.Text(why))
			return
		}
	}
}

// try sends one request, and returns why it failed.
func (p *Pinger) try(ctx context.Context, address string, one ping) string {
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "it is not a URL such as https://host/path once every ${...} in it is replaced"
	}
	u.Path = strings.TrimSuffix(u.Path, "/") + string(one.signal)
	method, body := http.MethodGet, io.Reader(nil)
	if one.text != "" {
		method, body = http.MethodPost, strings.NewReader(one.text)
	}
	request, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return "it is not a URL"
	}
	request.Header.Set("User-Agent", "lockstep")
	response, err := p.client.http.Do(request)
	if err != nil {
		return why(ctx, err)
	}
	defer response.Body.Close()
	// so that the connection can be used again
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, replyMost))
	if response.StatusCode < 200 || response.StatusCode >= 300 {
		return "it replied with status " + response.Status[:min(len(response.Status), 3)]
	}
	return ""
}
