package notify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/nicholas-fedor/shoutrrr/pkg/router"
	"github.com/nicholas-fedor/shoutrrr/pkg/types"

	"lockstep/jobs"
)

// KnowsService reports whether shoutrrr has a service of this name, which is the scheme of its
// URLs.
func KnowsService(name string) bool {
	_, err := new(router.ServiceRouter).NewService(name)
	return err == nil
}

// toService sends a text to a service. A service takes no context: a request that outlives the
// limit is left to itself, and only some may.
func (c *Client) toService(ctx context.Context, name, address string, secrets []jobs.Secret, text string) (*Reply, error) {
	redact := jobs.NewRedactor(append(secrets, wordsOf(address)...))
	service, err := c.service(name, address)
	if err != nil {
		return nil, &requestError{reason: redact.Text("its url: " + err.Error())}
	}
	select {
	case c.hanging <- struct{}{}:
	default:
		return nil, errors.New("too many requests to services have no reply")
	}
	sent := make(chan error, 1)
	go func() { // it may outlive this call: see hanging
		defer func() { <-c.hanging }()
		defer func() {
			if broken := recover(); broken != nil {
				sent <- fmt.Errorf("the library for this service has failed: %v", broken)
			}
		}()
		sent <- service.Send(text, nil)
	}()
	select {
	case err = <-sent:
	case <-ctx.Done():
		err = ctx.Err()
		c.forget(name) // the request still uses it
	}
	if err != nil {
		return nil, &requestError{reason: redact.Text(printable([]byte(why(ctx, err))))}
	}
	return &Reply{}, nil
}

// known is the service of a target, which keeps its connections. A service has one request at a
// time.
type known struct {
	address string
	service types.Service
}

// service returns the service of a target.
func (c *Client) service(name, address string) (types.Service, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k, ok := c.services[name]; ok && k.address == address {
		return k.service, nil
	}
	service, err := new(router.ServiceRouter).Locate(address)
	if err != nil {
		return nil, err
	}
	c.services[name] = known{address, service}
	return service, nil
}

func (c *Client) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.services, name)
}

// wordsOf returns the words of a service's URL as secrets: tokens are in all of its parts, and the
// service makes other URLs of them.
func wordsOf(address string) []jobs.Secret {
	_, rest, _ := strings.Cut(address, "://")
	var words []jobs.Secret
	for _, word := range append(strings.FieldsFunc(rest, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }),
		strings.FieldsFunc(rest, func(r rune) bool { return strings.ContainsRune("/:@?&=", r) })...) {
		words = append(words, jobs.Secret{Reference: jobs.Hidden, Value: word})
	}
	return words
}
