package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/configs"
)

// parseURL parses a URL that configs has checked into the options of a client. The parsers of the
// client library read it: an option that the library does not know is an error here, too. They get
// it in the form that they know, because package net/url cannot parse lists of hosts: each host
// after the first is a parameter, and on Sentinel the login is one, since the library takes the
// login in front of the hosts for that of the sentinels.
//
// Of what they return, only the addresses, the login, the database and the master count. Retries,
// timeouts and pools are this program's, and so is the TLS configuration: the library verifies all
// nodes of a cluster by the name of the first.
func parseURL(text string) (*redis.UniversalOptions, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return nil, errors.New("it is not a Redis URL")
	}
	plain, encrypted := configs.Redis{URL: text}.Topology()
	rest, query, _ := strings.Cut(rest, "?")
	parameters, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("the part after the ? is not key=value")
	}
	u := url.URL{Scheme: "redis"}
	if encrypted {
		u.Scheme = "rediss"
	}
	var user, password string
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		before, after, _ := strings.Cut(rest[:at], ":")
		if user, err = url.PathUnescape(before); err == nil {
			password, err = url.PathUnescape(after)
		}
		if err != nil {
			return nil, fmt.Errorf("user or password is not percent-encoded")
		}
		u.User = url.UserPassword(user, password)
		rest = rest[at+1:]
	}
	list, db, _ := strings.Cut(rest, "/")
	u.Path = "/" + db
	port := "6379"
	if plain == "redis-sentinel" {
		port = "26379"
	}
	var hosts []string
	for host := range strings.SplitSeq(list, ",") {
		hosts = append(hosts, withPort(host, port))
	}
	u.Host = hosts[0]
	parameters["addr"] = hosts[1:]

	o := new(redis.UniversalOptions)
	switch plain {
	case "redis", "unix":
		if delete(parameters, "addr"); plain == "unix" {
			u.Scheme, u.Host = "unix", ""
		}
		u.RawQuery = parameters.Encode()
		one, err := redis.ParseURL(u.String())
		if err != nil {
			return nil, unquoted(err)
		}
		o.Addrs, o.Username, o.Password, o.DB = []string{one.Addr}, one.Username, one.Password, one.DB
	case "redis-cluster":
		u.RawQuery = parameters.Encode()
		all, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, unquoted(err)
		}
		o.IsClusterMode, o.Addrs, o.Username, o.Password = true, all.Addrs, all.Username, all.Password
	case "redis-sentinel":
		u.User = nil
		parameters.Set("username", user)
		parameters.Set("password", password)
		parameters["master_name"] = parameters["master"]
		delete(parameters, "master")
		u.RawQuery = parameters.Encode()
		all, err := redis.ParseFailoverURL(u.String())
		if err != nil {
			return nil, unquoted(err)
		}
		o.MasterName, o.Addrs, o.DB, o.Username, o.Password = all.MasterName, all.SentinelAddrs, all.DB, all.Username, all.Password
	default:
		return nil, fmt.Errorf("its scheme is %s", scheme)
	}
	return o, nil
}

// unquoted returns an error of the library without the URL, which has a password. Other errors of
// the library name a parameter, or quote a host or a database, which are no secrets.
func unquoted(err error) error {
	if known, ok := errors.AsType[*url.Error](err); ok {
		return known.Err
	}
	return err
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

	// slotsEvery is how old the library's view of a cluster may become before it looks again. A
	// master that stops names no successor, and a command that opens no session looks for none.
	slotsEvery = 5 * time.Second
)

// newClient makes a client from the settings; it dials nothing. Package locks and asynq make their
// own clients from its options, so everything that a connection needs is in these.
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
	topology, encrypted := settings.Topology()
	if topology == "redis-sentinel" {
		// The library has no function for this login, so it is read once.
		if o.SentinelUsername, o.SentinelPassword, err = settings.Sentinel.Login(); err != nil {
			return nil, err
		}
	}
	if encrypted {
		secure := &secureDialer{settings: settings}
		// The library dials with Dialer alone. Package locks looks at TLSConfig to know that a
		// connection is more than a socket.
		if o.TLSConfig, err = secure.config(); err != nil {
			return nil, err
		}
		o.Dialer = secure.dial
	}
	o.MaxRetries, o.DialerRetries, o.DialTimeout, o.ReadTimeout = sendOnce, dialOnce, dialTimeout, readTimeout
	o.ContextTimeoutEnabled = true
	o.MaxRedirects = 3 // needed: redirects are how a client of a cluster finds slots
	if topology == "redis-cluster" {
		cluster := o.Cluster()
		cluster.ClusterStateReloadInterval = slotsEvery
		return redis.NewClusterClient(cluster), nil
	}
	return redis.NewUniversalClient(o), nil
}
