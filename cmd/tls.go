package cmd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/configs"
)

// A secureDialer makes connections with TLS. Every connection to Redis and to a sentinel is made by
// it: those of the caller's client, those of the clients that package locks makes from its options,
// and those of subscribers.
//
// It reads the files of redis.tls for each connection, so that renewed ones need no restart. While
// they cannot be used, as in the moment in which one of two is replaced, it uses the last good
// ones.
type secureDialer struct {
	settings configs.Redis

	mu   sync.Mutex
	last *tls.Config // the last one with good files; guarded by mu
}

// config returns the configuration of a new connection. The error of files that were good before is
// left to [secureDialer.stale].
func (d *secureDialer) config() (*tls.Config, error) {
	fresh, err := d.settings.TLS.Config()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.last = fresh
	}
	if d.last == nil {
		return nil, err
	}
	return d.last.Clone(), nil
}

// stale returns why the files cannot be used now, or nil.
func (d *secureDialer) stale() error {
	_, err := d.settings.TLS.Config()
	return err
}

// dial connects and shakes hands.
func (d *secureDialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	config, err := d.config()
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(address)
	}
	secure := &secureConn{dialer: d, address: address, offers: len(config.Certificates) > 0}
	offered := config.Certificates
	config.Certificates = nil
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		secure.asked = true
		if len(offered) > 0 {
			return &offered[0], nil
		}
		return new(tls.Certificate), nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	secure.Conn = tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		// Nothing was sent: package locks recognizes that by the operation.
		err = secure.explain(&net.OpError{Op: "dial", Net: network, Addr: conn.RemoteAddr(), Err: err})
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

// A secureConn is a connection whose first errors are explained: by TLS 1.3, the server judges the
// certificate of a client after the client's handshake.
type secureConn struct {
	*tls.Conn
	dialer  *secureDialer
	address string
	offers  bool        // the client has a certificate
	asked   bool        // the server has asked for one
	heard   atomic.Bool // the server has sent something after the handshake
}

// Read reads from the connection.
func (c *secureConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, c.judge("read", n, err)
}

// Write writes to the connection.
func (c *secureConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, c.judge("write", 0, err)
}

// judge explains an error before the server has sent anything. The library unwraps the error of a
// new connection once, so a tlsError must not be the outermost one.
func (c *secureConn) judge(op string, n int, err error) error {
	switch {
	case c.heard.Load():
		return err
	case n > 0:
		c.heard.Store(true)
	case err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, net.ErrClosed):
		return &net.OpError{Op: op, Net: "tcp", Addr: c.RemoteAddr(), Err: c.explain(err)}
	}
	return err
}

// A tlsError says in one sentence why a connection with TLS could not be made, and the remedy.
type tlsError struct {
	says string
	err  error
}

func (e *tlsError) Error() string { return e.says }
func (e *tlsError) Unwrap() error { return e.err }

// explain returns an error of the handshake as a [tlsError]. The error of another kind remains.
func (c *secureConn) explain(err error) error {
	says := c.reason(err)
	if says == "" {
		return err
	}
	if stale := c.dialer.stale(); stale != nil {
		says += "; also, " + stale.Error()
	}
	return &tlsError{says, err}
}

func (c *secureConn) reason(err error) string {
	settings, at := c.dialer.settings.TLS, c.address
	var (
		invalid   x509.CertificateInvalidError
		authority x509.UnknownAuthorityError
		named     x509.HostnameError
		rootless  x509.SystemRootsError
		record    tls.RecordHeaderError
	)
	switch {
	case errors.Is(err, context.Canceled): // by the caller
		return ""
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		if now := time.Now(); invalid.Cert != nil && now.Before(invalid.Cert.NotBefore) {
			return fmt.Sprintf("the certificate of %s is not valid before %s, and it is %s here: check the clock of this host", at, minute(invalid.Cert.NotBefore), minute(now))
		}
		if invalid.Cert != nil && invalid.Cert.IsCA {
			return fmt.Sprintf("the authority that signed the certificate of %s has one that expired%s: renew it on the server and in redis.tls.ca_file", at, expiry(invalid.Cert))
		}
		return fmt.Sprintf("the certificate of %s expired%s: renew it on the server", at, expiry(invalid.Cert))
	case errors.As(err, &invalid):
		return fmt.Sprintf("the certificate of %s cannot be used (%v): issue another one for the server", at, invalid)
	case errors.As(err, &rootless):
		return fmt.Sprintf("this host has no list of trusted authorities, so the certificate of %s cannot be verified: set redis.tls.ca_file", at)
	case errors.As(err, &authority) && settings.CAFile != "":
		return fmt.Sprintf("the certificate of %s is not signed by an authority in redis.tls.ca_file %s: add the certificate of its authority there", at, settings.CAFile)
	case errors.As(err, &authority):
		return fmt.Sprintf("this host does not trust the authority that signed the certificate of %s: set redis.tls.ca_file to a file with the certificate of that authority", at)
	case errors.As(err, &named):
		return fmt.Sprintf("the certificate of %s is for %s and not for %s: use a name of the certificate in redis.url, or set redis.tls.server_name to it", at, certified(named.Certificate), named.Host)
	case errors.As(err, &record), errors.Is(err, io.EOF) && c.ConnectionState().Version == 0:
		return fmt.Sprintf("%s does not use TLS: name the TLS port of the server in redis.url, or write %s:// there", at, c.plain())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprintf("%s accepts connections and sends no TLS reply: if it is not overloaded, name the TLS port of the server in redis.url, or write %s:// there", at, c.plain())
	}
	alert := ""
	if _, after, is := strings.Cut(err.Error(), "remote error: tls: "); is {
		alert = after
	}
	switch {
	case alert == "certificate required", c.asked && !c.offers && alert != "protocol version not supported":
		return fmt.Sprintf("%s requires the certificate of a client: set redis.tls.cert_file and redis.tls.key_file", at)
	case alert == "protocol version not supported", alert == "insufficient security level", alert == "handshake failure" && !c.asked:
		return fmt.Sprintf("%s and this program have no version of TLS or no cipher in common (%s): allow TLS 1.2 or 1.3 on the server", at, alert)
	case c.asked && c.offers && (alert != "" || c.ConnectionState().HandshakeComplete):
		return fmt.Sprintf("%s refuses the certificate in redis.tls.cert_file %s%s: %s", at, settings.CertFile, parenthesis(alert), clientRemedy(settings))
	}
	return ""
}

// plain returns the scheme of redis.url without TLS.
func (c *secureConn) plain() string {
	plain, _ := c.dialer.settings.Topology()
	return plain
}

// clientRemedy says what to do about a certificate of this client that a server refuses.
func clientRemedy(settings configs.TLS) string {
	config, err := settings.Config()
	if err == nil && len(config.Certificates) > 0 {
		if leaf := config.Certificates[0].Leaf; time.Now().After(leaf.NotAfter) {
			return "it expired" + expiry(leaf) + ", renew it"
		}
	}
	return "use one that is signed by an authority in tls-ca-cert-file of the server"
}

func parenthesis(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

func expiry(certificate *x509.Certificate) string {
	if certificate == nil {
		return ""
	}
	return " on " + minute(certificate.NotAfter)
}

func minute(t time.Time) string { return t.UTC().Format("2006-01-02 15:04Z") }

// certified lists the first names of a certificate.
func certified(certificate *x509.Certificate) string {
	const most = 5
	var list []string
	list = append(list, certificate.DNSNames...)
	for _, ip := range certificate.IPAddresses {
		list = append(list, ip.String())
	}
	if len(list) > most {
		list = append(list[:most], "...")
	}
	return cmp.Or(strings.Join(list, ", "), "no name")
}

// probeLimit bounds the search for a server with TLS after a connection without TLS has failed.
const probeLimit = time.Second

// plainToTLS returns the address of a server that uses TLS although redis.url does not, or "". Such
// a server just closes a connection that begins with anything else.
func plainToTLS(ctx context.Context, settings configs.Redis) string {
	o, err := parseURL(settings.URL)
	if plain, encrypted := settings.Topology(); err != nil || encrypted || plain == "unix" {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	for _, address := range o.Addrs {
		dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12}}
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close() // nothing was sent
			return address
		}
		_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
		if unverified || strings.Contains(err.Error(), "remote error: tls: ") {
			return address
		}
	}
	return ""
}
