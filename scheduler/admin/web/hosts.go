package web

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// errHost and errForwarded refuse requests that a browser may have been tricked into sending, or
// that came from farther away than admin.listen allows.
var (
	errHost      = errors.New("refused host name")
	errForwarded = errors.New("this request came through a reverse proxy, and admin.auth.mode is none: every client of that proxy " +
		"would be let in; set admin.auth.mode to proxy, basic or token")
)

// checkHost refuses a request under a name that is not known to be this server's. An attacker's
// page can make its own name point to this server (DNS rebinding): to the browser, page and server
// then have one origin, and the page reads every reply. An address is not a name, and the browser
// itself resolves localhost, so neither can be made to point here. Modes basic and token need no
// check: a browser keeps a user's credentials for the name under which the user signed in. Mode
// proxy needs one: the page itself could name any user in the header.
func (s *Server) checkHost(r *http.Request) error {
	mode := s.o.SignIn.mode
	if len(s.o.Hosts) == 0 && (mode == AuthBasic || mode == AuthToken) {
		return nil
	}
	name := r.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "localhost" || isAddress(name) || slices.Contains(s.o.Hosts, name) {
		return nil
	}
	return fmt.Errorf("%w: %q is not known as a name of this server; add it to admin.hosts, or use the address", errHost, name)
}

func isAddress(host string) bool {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	_, err := netip.ParseAddr(host)
	return err == nil
}

// checkDirect refuses, in mode none, a request that came through a reverse proxy: every client of
// the proxy reaches this server, although it listens on loopback.
func (s *Server) checkDirect(r *http.Request) error {
	if s.o.SignIn.mode != AuthNone {
		return nil
	}
	for name := range r.Header {
		if name == "Forwarded" || name == "X-Real-Ip" || strings.HasPrefix(name, "X-Forwarded-") {
			return errForwarded
		}
	}
	return nil
}
