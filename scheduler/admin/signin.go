package admin

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/crypto/bcrypt"
)

// AuthMode is how people and scripts sign in.
type AuthMode string

const (
	AuthNone  AuthMode = "none"  // not at all
	AuthBasic AuthMode = "basic" // user and password, as every browser asks for them
	AuthToken AuthMode = "token" // Authorization: Bearer ..., for scripts
	AuthProxy AuthMode = "proxy" // a reverse proxy has signed them in, and names them in a header
)

// Auth is what admin.auth says; each field is the key of its name. Only the fields of its mode count.
type Auth struct {
	Mode AuthMode

	User         string // basic with a password file: who may sign in; token: whom the audit names
	PasswordFile string // basic: the password of User
	UsersFile    string // basic, in its place: lines of name:hash by bcrypt, as htpasswd -B writes them
	TokenFile    string // token
	Header       string // proxy: which header has the name
	Proxies      []netip.Prefix
}

// SignIn decides who a request comes from. Its files are read anew for each request, so that a password that was changed
// counts at once; while a file cannot be used, nobody is let in.
type SignIn struct {
	mode      AuthMode
	challenge string // what a 401 tells of how to sign in
	closed    bool   // nobody can sign in, so nothing is served
	log       *slog.Logger

	// who returns the name of whoever sent a request. The error is errSignIn, errClosed or errUnchecked.
	who func(r *http.Request) (string, error)

	told seldom // of refusals and of files that cannot be used
}

var (
	// errSignIn says that a request has to be signed in. Its sentences end up in answers: they tell what is missing, not
	// which part of it was wrong.
	errSignIn = errors.New("sign in")

	// errClosed says that nobody can sign in at this address.
	errClosed = errors.New("admin.auth.mode is none and this address is not loopback, so /livez, /readyz and /metrics are all that " +
		"is served; set admin.auth.mode to basic, token or proxy")

	// errUnchecked says that it cannot be told whether somebody may come in.
	errUnchecked = errors.New("sign-ins cannot be checked now; the log of this worker says why")
)

// NewSignIn returns what lets requests in by auth, for a server that listens at an address as [Listen] takes it. It reads
// the files that auth names: one that is not there, or not what it has to be, is an error that names its key.
func NewSignIn(auth Auth, address string, log *slog.Logger) (*SignIn, error) {
	s := &SignIn{mode: auth.Mode, log: log}
	switch auth.Mode {
	case AuthNone, "":
		host, _, err := parse(address)
		if err != nil {
			return nil, err
		}
		s.mode = AuthNone
		s.closed = !isLoopback(host)
		s.who = func(*http.Request) (string, error) {
			if s.closed {
				return "", errClosed
			}
			return "", nil
		}
		return s, nil
	case AuthBasic:
		s.challenge = `Basic realm="lockstep", charset="UTF-8"`
		return s, s.basic(auth)
	case AuthToken:
		s.challenge = `Bearer realm="lockstep"`
		return s, s.token(auth)
	case AuthProxy:
		s.challenge = `Proxy realm="lockstep"` // RFC 9110 wants one; there is nothing that the asker could do here
		return s, s.proxy(auth)
	}
	return nil, fmt.Errorf("admin.auth.mode %q: it is none, basic, token or proxy", auth.Mode)
}

// Mode is how one signs in.
func (s *SignIn) Mode() AuthMode { return s.mode }

// Closed tells whether nothing but the probes and metrics is served, because of mode none at an address that others reach.
func (s *SignIn) Closed() bool { return s.closed }

func (s *SignIn) basic(auth Auth) error {
	switch {
	case auth.PasswordFile == "" && auth.UsersFile == "":
		return errors.New("admin.auth.mode is basic: set admin.auth.password_file or admin.auth.users_file")
	case auth.PasswordFile != "" && auth.UsersFile != "":
		return errors.New("admin.auth.password_file and admin.auth.users_file: only one of them can be meant")
	}
	var right func(ctx context.Context, user, password string) (bool, error)
	if auth.PasswordFile != "" {
		file := &kept[string]{key: "admin.auth.password_file", path: auth.PasswordFile, parse: oneSecret}
		if _, err := file.get(); err != nil {
			return err
		}
		right = func(_ context.Context, user, password string) (bool, error) {
			wanted, err := file.get()
			return sameText(user, auth.User) && sameText(password, wanted), err // both are looked at, so that time tells nothing
		}
	} else {
		file := &kept[*users]{key: "admin.auth.users_file", path: auth.UsersFile, parse: parseUsers}
		if _, err := file.get(); err != nil {
			return err
		}
		right = func(ctx context.Context, user, password string) (bool, error) {
			all, err := file.get()
			if err != nil {
				return false, err
			}
			return all.right(ctx, user, password)
		}
	}
	s.who = func(r *http.Request) (string, error) {
		user, password, ok := r.BasicAuth()
		if !ok {
			return "", fmt.Errorf("%w with your user name and password", errSignIn)
		}
		good, err := right(r.Context(), user, password)
		return user, s.verdict(r, good, err, "this user name and password are not known here")
	}
	return nil
}

func (s *SignIn) token(auth Auth) error {
	if auth.TokenFile == "" {
		return errors.New("admin.auth.mode is token: set admin.auth.token_file")
	}
	file := &kept[string]{key: "admin.auth.token_file", path: auth.TokenFile, parse: oneToken}
	if _, err := file.get(); err != nil {
		return err
	}
	s.who = func(r *http.Request) (string, error) {
		token, ok := authorization(r, "Bearer")
		if !ok {
			return "", fmt.Errorf("%w with the header Authorization: Bearer TOKEN", errSignIn)
		}
		wanted, err := file.get()
		return auth.User, s.verdict(r, err == nil && sameText(token, wanted), err, "this token is not the one of this worker")
	}
	return nil
}

func (s *SignIn) proxy(auth Auth) error {
	if auth.Header == "" || len(auth.Proxies) == 0 {
		return errors.New("admin.auth.mode is proxy: set admin.auth.header and admin.auth.proxies")
	}
	s.who = func(r *http.Request) (string, error) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		peer := from.Addr().Unmap().WithZone("")
		if err != nil || !slices.ContainsFunc(auth.Proxies, func(p netip.Prefix) bool { return p.Contains(peer) }) {
			s.refused(r, "it does not come from one of admin.auth.proxies")
			return "", fmt.Errorf("%w at the reverse proxy in front of this worker: this request does not come from it", errSignIn)
		}
		switch names := r.Header.Values(auth.Header); {
		case len(names) == 0 || len(names) == 1 && names[0] == "":
			return "", fmt.Errorf("%w at the reverse proxy: it has sent no header %s", errSignIn, auth.Header)
		case len(names) > 1: // the proxy's own, and one that somebody gave it to pass on
			s.refused(r, "the header with the name is there more than once")
			return "", fmt.Errorf("%w: the header %s is there %d times", errSignIn, auth.Header, len(names))
		case !isName(names[0]):
			return "", fmt.Errorf("%w: the header %s holds no name", errSignIn, auth.Header)
		default:
			return names[0], nil
		}
	}
	return nil
}

// nameMost bounds, in bytes, what is kept of a name in each act of the audit.
const nameMost = 200

// isName tells whether a name can stand in an audit.
func isName(s string) bool {
	return len(s) <= nameMost && utf8.ValidString(s) && strings.TrimSpace(s) == s && !strings.ContainsFunc(s, unicode.IsControl)
}

// verdict is what becomes of a request that tried to sign in.
func (s *SignIn) verdict(r *http.Request, good bool, err error, refusal string) error {
	switch {
	case err != nil && r.Context().Err() != nil: // it has gone away
		return errUnchecked
	case err != nil:
		if s.told.now() {
			s.log.ErrorContext(r.Context(), "sign-ins cannot be checked", "error", err)
		}
		return errUnchecked
	case !good:
		s.refused(r, refusal)
		return fmt.Errorf("%w: %s", errSignIn, refusal)
	}
	return nil
}

// refused logs that somebody tried; who tries a thousand times a second fills no disk with it.
func (s *SignIn) refused(r *http.Request, why string) {
	if s.told.now() {
		s.log.WarnContext(r.Context(), "a sign-in is refused", "from", remoteHost(r), "because", why)
	}
}

// sameText compares in a time that does not tell how much is right, nor how long the wanted text is.
func sameText(given, wanted string) bool {
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(wanted))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// authorization returns what a request's header Authorization has behind the name of a scheme.
func authorization(r *http.Request, scheme string) (string, bool) {
	name, value, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(value), ok && strings.EqualFold(name, scheme)
}

// kept is a file that is read for each request, and parsed when it has changed.
type kept[T any] struct {
	key, path string
	parse     func(text string) (T, error)

	mu     sync.Mutex // guards the rest
	parsed bool
	text   string // what value was made of
	value  T
}

const secretMost = 1 << 20 // bytes of a file

func (k *kept[T]) get() (T, error) {
	var none T
	text, err := readRegular(k.path)
	if err != nil {
		return none, fmt.Errorf("%s %s: %w", k.key, k.path, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.parsed && text == k.text {
		return k.value, nil
	}
	value, err := k.parse(text)
	if err != nil {
		return none, fmt.Errorf("%s %s: %w", k.key, k.path, err)
	}
	k.parsed, k.text, k.value = true, text, value
	return value, nil
}

// readRegular reads a small file. What can be read only once, such as a pipe, is refused.
func readRegular(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return "", errors.New("it is not a file")
	case err == nil && info.Size() > secretMost:
		return "", fmt.Errorf("it is larger than %d KiB", secretMost>>10)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		err = failed.Err // the path is named already
	}
	return string(data), err
}

// oneSecret is a file that holds one text, with the newlines that editors put behind it.
func oneSecret(text string) (string, error) {
	text = strings.TrimRight(text, "\r\n")
	if text == "" {
		return "", errors.New("it is empty")
	}
	return text, nil
}

func oneToken(text string) (string, error) {
	token, err := oneSecret(text)
	if err == nil && strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		err = errors.New("a token has no blanks, and no other characters than ASCII has")
	}
	return token, err
}

// users are those of a users file.
type users struct {
	hashes map[string][]byte
	decoy  []byte // what the password of somebody unknown is compared with, so that time does not tell who is known

	// turn is taken by who computes a hash. It takes long on purpose, and whoever guesses passwords must not take all
	// processors from the jobs.
	turn chan struct{}

	salt []byte // of seen
	mu   sync.Mutex
	seen map[string][]byte // guarded by mu: what was right, by user, so that a page that asks each second is let in at once
}

// costMost is 64 times as slow as htpasswd's and bcrypt's own default, some seconds.
const costMost = 16

// parseUsers reads lines of name:hash. Errors name the line and never quote it.
func parseUsers(text string) (*users, error) {
	u := &users{hashes: make(map[string][]byte), turn: make(chan struct{}, 1), salt: make([]byte, sha256.Size), seen: make(map[string][]byte)}
	_, _ = rand.Read(u.salt) // it never fails
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, hash, ok := strings.Cut(line, ":")
		cost, err := bcrypt.Cost([]byte(hash))
		switch {
		case !ok || name == "":
			return nil, fmt.Errorf("line %d is not name:hash; write it by htpasswd -B", number)
		case !isName(name):
			return nil, fmt.Errorf("line %d: the name is longer than %d bytes, or has blanks around it or control characters in it", number, nameMost)
		case u.hashes[name] != nil:
			return nil, fmt.Errorf("line %d: user %q is there already", number, name)
		case err != nil || len(hash) != 60:
			return nil, fmt.Errorf("line %d: user %q has no hash of bcrypt; write it by htpasswd -B", number, name)
		case cost > costMost:
			return nil, fmt.Errorf("line %d: the hash of user %q has a cost of %d, more than %d: it would be computed for minutes", number, name, cost, costMost)
		}
		u.hashes[name] = []byte(hash)
		if u.decoy == nil {
			u.decoy = u.hashes[name]
		}
	}
	if u.decoy == nil {
		return nil, errors.New("it names no user; add one by htpasswd -B")
	}
	return u, nil
}

// right tells whether a user has this password.
func (u *users) right(ctx context.Context, user, password string) (bool, error) {
	mac := hmac.New(sha256.New, u.salt)
	mac.Write([]byte(password))
	sum := mac.Sum(nil)
	u.mu.Lock()
	known := hmac.Equal(u.seen[user], sum)
	u.mu.Unlock()
	if known {
		return true, nil
	}
	select {
	case u.turn <- struct{}{}:
		defer func() { <-u.turn }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	hash, there := u.hashes[user]
	if !there {
		hash = u.decoy
	}
	if bcrypt.CompareHashAndPassword(hash, []byte(password)) != nil || !there {
		return false, nil
	}
	u.mu.Lock()
	u.seen[user] = sum
	u.mu.Unlock()
	return true, nil
}

// seldom tells about once a second that it is time.
type seldom struct {
	mu   sync.Mutex
	last time.Time
}

func (s *seldom) now() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.last) < time.Second {
		return false
	}
	s.last = time.Now()
	return true
}
