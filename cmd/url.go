package cmd

import (
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

// address is a parsed Redis URL. Package net/url cannot parse lists of hosts, which Sentinel and
// Cluster have.
type address struct {
	scheme         string
	user, password string
	hosts          []string // host:port; for unix, the path of the socket
	db             int
	master         string // of Sentinel
}

// parseURL parses a URL that configs has checked. It still refuses what only a client can know.
func parseURL(text string) (*address, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return nil, errors.New("it is not a Redis URL")
	}
	a := &address{scheme: scheme}
	rest, query, _ := strings.Cut(rest, "?")
	parameters, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("the part after the ? is not key=value")
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, password, _ := strings.Cut(rest[:at], ":")
		if a.user, err = url.PathUnescape(user); err == nil {
			a.password, err = url.PathUnescape(password)
		}
		if err != nil {
			return nil, fmt.Errorf("user or password is not percent-encoded")
		}
		rest = rest[at+1:]
	}
	hosts, db, _ := strings.Cut(rest, "/")
	port := "6379"
	switch scheme {
	case "unix":
		a.hosts, db = []string{"/" + db}, parameters.Get("db")
	case "redis-sentinel":
		a.master, port = parameters.Get("master"), "26379"
		fallthrough
	default:
		for host := range strings.SplitSeq(hosts, ",") {
			a.hosts = append(a.hosts, withPort(host, port))
		}
	}
	if db != "" {
		if a.db, err = strconv.Atoi(db); err != nil {
			return nil, fmt.Errorf("database %q is not a number", db)
		}
	}
	return a, nil
}

func withPort(host, port string) string {
	if h, p, err := net.SplitHostPort(host); err == nil {
		if h == "" {
			h = "127.0.0.1"
		}
		return net.JoinHostPort(h, p)
	}
	if host = strings.Trim(host, "[]"); host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
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
	a, err := parseURL(settings.URL)
	if err != nil {
		return nil, fmt.Errorf("redis.url %s: %w", settings.SafeURL(), err)
	}
	var credentials func(context.Context) (string, string, error)
	if settings.PasswordFile != "" {
		if _, err := settings.Password(); err != nil {
			return nil, err
		}
		// for each connection: a mounted secret may change
		credentials = func(context.Context) (string, string, error) {
			password, err := settings.Password()
			return a.user, password, err
		}
	}
	switch a.scheme {
	case "redis-cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: a.hosts, Username: a.user, Password: a.password, CredentialsProviderContext: credentials,
			// needed: redirects are how the client finds slots
			MaxRetries: sendOnce, MaxRedirects: 3,
			DialerRetries: dialOnce, DialTimeout: dialTimeout, ReadTimeout: readTimeout, ContextTimeoutEnabled: true,
		}), nil
	case "redis-sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: a.master, SentinelAddrs: a.hosts, DB: a.db,
			Username: a.user, Password: a.password, CredentialsProviderContext: credentials,
			MaxRetries: sendOnce, DialerRetries: dialOnce, DialTimeout: dialTimeout, ReadTimeout: readTimeout,
			ContextTimeoutEnabled: true,
		}), nil
	}
	o := &redis.Options{
		Network: "tcp", Addr: a.hosts[0], DB: a.db,
		Username: a.user, Password: a.password, CredentialsProviderContext: credentials,
		MaxRetries: sendOnce, DialerRetries: dialOnce, DialTimeout: dialTimeout, ReadTimeout: readTimeout,
		ContextTimeoutEnabled: true,
	}
	switch a.scheme {
	case "unix":
		o.Network = "unix"
	case "rediss":
		host, _, _ := net.SplitHostPort(o.Addr)
		o.TLSConfig = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	}
	return redis.NewClient(o), nil
}
