package configs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// Topology returns the scheme of the URL without TLS: redis, redis-sentinel, redis-cluster or unix,
// or [Embedded]. encrypted reports whether the URL has TLS.
func (r Redis) Topology() (plain string, encrypted bool) {
	scheme, _, _ := strings.Cut(r.URL, "://")
	return topology(scheme)
}

// Config reads the files and returns the client's side of new connections. Its ServerName is empty
// unless the setting is set; then it is the host of each address. Call it for each new connection,
// because certificates are renewed on disk. The error names the setting and the file, and says
// what to do.
func (t TLS) Config() (*tls.Config, error) {
	config := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	var err error
	if t.CAFile != "" {
		if config.RootCAs, err = readRoots(t.CAFile); err != nil {
			return nil, err
		}
	}
	if t.CertFile != "" || t.KeyFile != "" {
		pair, err := readPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// Login returns the user and the password of the sentinels, both "" if they need none. The password
// has no trailing newlines.
func (s Sentinel) Login() (user, password string, err error) {
	switch {
	case s.Password != "":
		return s.User, s.Password, nil
	case s.PasswordFile != "":
		if password, err = readSecret(s.PasswordFile); err != nil {
			return "", "", fmt.Errorf("redis.sentinel.password_file %s: %w", s.PasswordFile, err)
		}
		return s.User, password, nil
	}
	return "", "", nil
}

// A fileError is the fault of a file that a setting names.
type fileError struct {
	key, path string
	reason    string // without the content of the file
	hint      string
	err       error // nil if the file could be read
}

func (e *fileError) Error() string {
	if e.path == "" {
		return fmt.Sprintf("%s %s; %s", e.key, e.reason, e.hint)
	}
	return fmt.Sprintf("%s %s: %s; %s", e.key, e.path, e.reason, e.hint)
}

func (e *fileError) Unwrap() error { return e.err }

const (
	caKey   = "redis.tls.ca_file"
	certKey = "redis.tls.cert_file"
	keyKey  = "redis.tls.key_file"

	pemHint = "it must have the lines of a PEM file, -----BEGIN CERTIFICATE----- and so on; to convert a DER file: openssl x509 -inform der"
)

// pemLimit is the most bytes that a PEM file may have. The authorities of a whole Linux system take
// a quarter of a MiB.
const pemLimit = 4 << 20

func readPEM(key, path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return nil, &fileError{key: key, path: path, reason: "it is not a regular file", hint: "name a PEM file", err: fs.ErrInvalid}
	}
	if err == nil && info.Size() > pemLimit {
		return nil, &fileError{key: key, path: path, reason: "it has more than 4 MiB", hint: "name a PEM file", err: fs.ErrInvalid}
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path)
	}
	if err == nil {
		return text, nil
	}
	cause := err
	if known, ok := errors.AsType[*fs.PathError](err); ok {
		cause = known.Err // without the path, which the message has
	}
	f := &fileError{key: key, path: path, reason: cause.Error(), hint: "correct the path, or put the file there", err: err}
	if errors.Is(err, fs.ErrPermission) {
		f.hint = "give the user of this process the right to read it"
	}
	return nil, f
}

// certificates returns the certificates of a PEM file.
func certificates(key, path string, text []byte) ([]*x509.Certificate, error) {
	var list []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		one, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, &fileError{key: key, path: path, reason: fmt.Sprintf("its certificate %d cannot be parsed", len(list)+1), hint: pemHint}
		}
		list = append(list, one)
	}
	if len(list) == 0 {
		return nil, &fileError{key: key, path: path, reason: "it has no certificate", hint: pemHint}
	}
	return list, nil
}

// readRoots returns the authorities of a PEM file.
func readRoots(path string) (*x509.CertPool, error) {
	text, err := readPEM(caKey, path)
	if err != nil {
		return nil, err
	}
	list, err := certificates(caKey, path, text)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	for _, one := range list {
		roots.AddCert(one)
	}
	return roots, nil
}

// readPair returns the certificate of this client with its key.
func readPair(certPath, keyPath string) (pair tls.Certificate, err error) {
	switch {
	case keyPath == "":
		return pair, &fileError{key: certKey, reason: "has no effect without " + keyKey, hint: "name the file with its private key there"}
	case certPath == "":
		return pair, &fileError{key: keyKey, reason: "has no effect without " + certKey, hint: "name the file with its certificate there"}
	}
	certText, err := readPEM(certKey, certPath)
	if err != nil {
		return pair, err
	}
	keyText, err := readPEM(keyKey, keyPath)
	if err != nil {
		return pair, err
	}
	chain, err := certificates(certKey, certPath, certText)
	if err != nil {
		return pair, err
	}
	if pair, err = tls.X509KeyPair(certText, keyText); err != nil {
		return pair, keyFault(keyPath, certPath, keyText)
	}
	pair.Leaf = chain[0]
	return pair, nil
}

// keyFault describes why a key cannot be used with its certificate.
func keyFault(keyPath, certPath string, text []byte) *fileError {
	f := &fileError{key: keyKey, path: keyPath}
	var key *pem.Block
	for key == nil || !strings.HasSuffix(key.Type, "PRIVATE KEY") {
		if key, text = pem.Decode(text); key == nil {
			f.reason, f.hint = "it has no private key", "it must have the lines of a PEM file, -----BEGIN PRIVATE KEY----- and so on"
			return f
		}
	}
	if key.Type == "ENCRYPTED PRIVATE KEY" || key.Headers["DEK-Info"] != "" {
		f.reason, f.hint = "the key has a passphrase", "store it without one: openssl pkey -in FILE -out NEWFILE"
		return f
	}
	f.reason, f.hint = "it is not the key of the certificate in "+certKey+" "+certPath, "name the two files that were issued together"
	return f
}

// lintTLS checks that redis.tls fits redis.url, and that its files can be used. A connection that
// lacks one of them is refused much later, or by the server, which cannot name the file.
func (l *loader) lintTLS(c *Config) {
	t := c.Settings.Redis.TLS
	set := "" // the first key that is set
	for _, setting := range settingList() {
		if _, is := c.Origins[setting.key]; is && set == "" && len(setting.path) == 3 && setting.path[1] == "tls" {
			set = setting.key
		}
	}
	if set == "" {
		return
	}
	switch plain, encrypted := c.Settings.Redis.Topology(); {
	case encrypted:
	case plain == Embedded || plain == "unix":
		l.settingProblem(c, SeverityWarning, set, CodeUnused, "redis.tls has no effect: redis.url is "+plain+", which uses no network", "")
		return
	default:
		key := "redis.url"
		if _, is := c.Origins[key]; !is {
			key = set
		}
		l.settingProblem(c, SeverityError, key, CodeTLS, "redis.tls is set, and redis.url is "+plain+"://, which does not use TLS",
			"write "+strings.Replace(plain, "redis", "rediss", 1)+":// in redis.url, or remove redis.tls")
		return
	}
	config, err := t.Config()
	if fault, ok := errors.AsType[*fileError](err); ok {
		code := CodeTLS
		if fault.err != nil {
			code = CodeUnreadable
		}
		message := fault.key + " " + fault.reason
		if fault.path != "" {
			message = fault.key + " " + quote(fault.path) + ": " + fault.reason
		}
		l.settingProblem(c, SeverityError, fault.key, code, message, fault.hint)
		return
	}
	for _, pair := range config.Certificates {
		switch leaf := pair.Leaf; {
		case l.now.After(leaf.NotAfter):
			l.settingProblem(c, SeverityWarning, certKey, CodeTLS, "the certificate in "+certKey+" expired on "+day(leaf.NotAfter)+": Redis refuses it",
				"renew it; new connections read it again")
		case l.now.Before(leaf.NotBefore):
			l.settingProblem(c, SeverityWarning, certKey, CodeTLS, "the certificate in "+certKey+" is not valid before "+day(leaf.NotBefore)+": Redis refuses it",
				"check the clock of this host, or wait")
		}
	}
}

// day returns the instant at which a certificate becomes or ceases to be valid.
func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04Z") }

// lintSentinel checks that the login at the sentinels is complete, and used.
func (l *loader) lintSentinel(c *Config) {
	s := c.Settings.Redis.Sentinel
	plain, _ := c.Settings.Redis.Topology()
	unused := func(key, message, hint string) {
		l.settingProblem(c, SeverityWarning, "redis.sentinel."+key, CodeUnused, "redis.sentinel."+key+" has no effect: "+message, hint)
	}
	for _, one := range []struct{ key, value string }{{"user", s.User}, {"password_file", s.PasswordFile}, {"password", s.Password}} {
		if one.value != "" && plain != "redis-sentinel" {
			unused(one.key, "redis.url is not redis-sentinel:// or rediss-sentinel://", "")
			return
		}
	}
	switch {
	case s.User != "" && s.PasswordFile == "" && s.Password == "":
		l.settingProblem(c, SeverityError, "redis.sentinel.user", CodeAuth, "redis.sentinel.user has no password, so it would not be sent",
			"add password_file: PATH")
	case s.PasswordFile != "" && s.Password != "":
		unused("password_file", "redis.sentinel.password is set", "keep one of them")
	}
}
