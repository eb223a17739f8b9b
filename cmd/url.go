package cmd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/configs"
)

// parseURL parses a URL that configs has checked into the options of a client. It still refuses
// what only a client can know. Package net/url cannot parse lists of hosts, which Sentinel and
// Cluster have.
func parseURL(text string) (*redis.UniversalOptions, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return nil, errors.New("it is not a Redis URL")
	}
	o := &redis.UniversalOptions{IsClusterMode: scheme == "redis-cluster"}
	rest, query, _ := strings.Cut(rest, "?")
	parameters, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("the part after the ? is not key=value")
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, password, _ := strings.Cut(rest[:at], ":")
		if o.Username, err = url.PathUnescape(user); err == nil {
			o.Password, err = url.PathUnescape(password)
		}
		if err != nil {
			return nil, fmt.Errorf("user or password is not percent-encoded")
		}
		rest = rest[at+1:]
	}
	hosts, db, _ := strings.Cut(rest, "/")
	port := "6379"
	switch scheme {
	case "unix": // the client recognizes a path by its slash
		o.Addrs, db = []string{"/" + db}, parameters.Get("db")
	case "redis-sentinel":
		o.MasterName, port = parameters.Get("master"), "26379"
		fallthrough
	default:
		for host := range strings.SplitSeq(hosts, ",") {
			o.Addrs = append(o.Addrs, withPort(host, port))
		}
	}
	if db != "" {
		if o.DB, err = strconv.Atoi(db); err != nil {
			return nil, fmt.Errorf("database %q is not a number", db)
		}
	}
	return o, nil
}

func withPort(host, port string) string {
	if h, p, err := net.SplitHostPort(host); err == nil {
		host, port = h, p
	}
	return net.JoinHostPort(cmp.Or(strings.Trim(host, "[]"), "127.0.0.1"), port)
}

// Options that all our clients share. A command is sent once: if the reply to a script is lost,
// only its caller knows what sending it again means. Deadlines apply, so that a Redis that does not
// answer is reported within seconds.
const (
	sendOnce    = -1
	dialOnce    = 1
	dialTimeout = 2 * time.Second
	readTimeout = 5 * time.Second
)

// newClient makes a client from the settings; it dials nothing.
func newClient(settings configs.Redis) (redis.UniversalClient, error) {
	o, err := parseURL(settings.URL)
	if err != nil {
		return nil, fmt.Errorf("redis.url %s: %w", settings.SafeURL(), err)
	}
	if settings.PasswordFile != "" {
		if _, err := settings.Password(); err != nil {
			return nil, err
		}
		user := o.Username
		// for each connection: a mounted secret may change
		o.CredentialsProviderContext = func(context.Context) (string, string, error) {
			password, err := settings.Password()
			return user, password, err
		}
	}
	if strings.HasPrefix(settings.URL, "rediss://") {
		host, _, _ := net.SplitHostPort(o.Addrs[0])
		o.TLSConfig = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	}
	o.MaxRetries, o.DialerRetries, o.DialTimeout, o.ReadTimeout = sendOnce, dialOnce, dialTimeout, readTimeout
	o.ContextTimeoutEnabled = true
	o.MaxRedirects = 3 // needed: redirects are how a client of a cluster finds slots
	return redis.NewUniversalClient(o), nil
}
