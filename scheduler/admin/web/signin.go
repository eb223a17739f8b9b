package web

import (
	"context"
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
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/time/rate"

	"lockstep/jobs"
	"lockstep/scheduler/admin"
)

// AuthMode is how people and scripts sign in.
type AuthMode string

const (
	AuthNone  AuthMode = "none"  // not at all
	AuthBasic AuthMode = "basic" // user and password, as every browser asks for them
	AuthToken AuthMode = "token" // Authorization: Bearer ..., for scripts
	AuthProxy AuthMode = "proxy" // a reverse proxy has signed them in, and names them in a header
)

// Auth is the section admin.auth; each field is the key of its name. Only the fields of its mode
// have an effect.
type Auth struct {
	Mode AuthMode

	// basic with a password file: the one user; token: the user that the audit names
	User         string
	PasswordFile string // basic: the password of User, an admin
	// basic, instead of PasswordFile: lines of name:hash by bcrypt, as htpasswd -B -C 12 writes
	// them, or of name:hash:role
	UsersFile string

	// token: one file for each role; at least one of them. TokenFile is that of admins.
	TokenFile, OperatorTokenFile, ViewerTokenFile string

	Header  string // proxy: the header with the name
	Proxies []netip.Prefix
	// proxy: the header with the groups; without it every user is an admin
	GroupsHeader               string
	Viewers, Operators, Admins []string // proxy: the groups with these roles
}

// SignIn determines the user of a request. It reads its files anew for each request, so that a
// changed password takes effect at once; while a file cannot be used, no client has access.
type SignIn struct {
	mode      AuthMode
	challenge string // the challenge of a 401
	closed    bool   // no client can sign in, so nothing is served
	log       *slog.Logger

	// The user that sent a request. The error is errSignIn, errRole, errUnchecked or
	// a *throttledError.
	who func(r *http.Request) (identity, error)

	// doubts describes what is unsafe about the users file, as the file is now: see
	// [SignIn.Warnings].
	doubts func() (weak, roles string)

	throttle *throttle
	now      func() time.Time // for throttle

	told rate.Sometimes // limits logging of refusals and of unusable files
}

var (
	// errSignIn is returned for a request without valid credentials. Its sentences end up in
	// answers: they name what is missing, not which part was wrong.
	errSignIn = errors.New("sign in")

	// errClosed is returned when no client can sign in at this address.
	errClosed = errors.New("admin.auth.mode is none and this address is not loopback, so /livez, /readyz and /metrics are all that " +
		"is served; set admin.auth.mode to basic, token or proxy")

	// errUnchecked is returned when the credentials cannot be checked.
	errUnchecked = errors.New("sign-ins cannot be checked now; the log of this worker has the reason")
)

// NewSignIn returns the sign-in by auth, for a server that listens at an address as [Listen] takes
// it. It reads the files that auth names: a missing or invalid one is an error that names its key.
func NewSignIn(auth Auth, address string, log *slog.Logger) (*SignIn, error) {
	s := &SignIn{mode: auth.Mode, log: log, doubts: noDoubts, throttle: newThrottle(), now: time.Now, told: rate.Sometimes{Interval: time.Second}}
	switch auth.Mode {
	case AuthNone, "":
		host, _, err := parse(address)
		if err != nil {
			return nil, err
		}
		s.mode = AuthNone
		s.closed = !isLoopback(host)
		s.who = everyone
		return s, nil
	case AuthBasic:
		s.challenge = `Basic realm="lockstep", charset="UTF-8"`
		return s, s.basic(auth)
	case AuthToken:
		s.challenge = `Bearer realm="lockstep"`
		return s, s.token(auth)
	case AuthProxy:
		s.challenge = `Proxy realm="lockstep"` // RFC 9110 wants one; the client cannot act on it
		return s, s.proxy(auth)
	}
	return nil, fmt.Errorf("admin.auth.mode %q: it is none, basic, token or proxy", auth.Mode)
}

// Mode returns how users sign in.
func (s *SignIn) Mode() AuthMode { return s.mode }

// Closed reports whether only the probes and metrics are served, because of mode none at an address
// that other hosts reach.
func (s *SignIn) Closed() bool { return s.closed }

// Warnings describe what is unsafe about the users file although it works: hashes of a low cost,
// and users without a role. Each is "" if nothing is.
func (s *SignIn) Warnings() (weak, roles string) { return s.doubts() }

func noDoubts() (weak, roles string) { return "", "" }

// everyone is the user of mode none.
func everyone(*http.Request) (identity, error) { return identity{role: RoleAdmin}, nil }

func (s *SignIn) basic(auth Auth) error {
	switch {
	case auth.PasswordFile == "" && auth.UsersFile == "":
		return errors.New("admin.auth.mode is basic: set admin.auth.password_file or admin.auth.users_file")
	case auth.PasswordFile != "" && auth.UsersFile != "":
		return errors.New("admin.auth.password_file and admin.auth.users_file: only one of them can be meant")
	}
	// check returns the state of the file, the role that the user has in it, and a function that
	// compares a name and a password with it.
	var check func(ctx context.Context, user, password string) (state string, role Role, right func() (bool, error), err error)
	if auth.PasswordFile != "" {
		file := &kept[string]{key: "admin.auth.password_file", path: auth.PasswordFile, parse: oneSecret}
		if _, err := file.get(); err != nil {
			return err
		}
		check = func(_ context.Context, user, password string) (string, Role, func() (bool, error), error) {
			wanted, err := file.get()
			return wanted, RoleAdmin, func() (bool, error) {
				// always both, so that time reveals nothing
				userIs, passwordIs := sameText(user, auth.User), sameText(password, wanted)
				return userIs && passwordIs, nil
			}, err
		}
	} else {
		file := &kept[*users]{key: "admin.auth.users_file", path: auth.UsersFile, parse: parseUsers}
		if _, err := file.get(); err != nil {
			return err
		}
		s.doubts = func() (weak, roles string) {
			all, err := file.get()
			if err != nil {
				return "", ""
			}
			about := func(doubt string) string {
				if doubt == "" {
					return ""
				}
				return "admin.auth.users_file " + auth.UsersFile + ": " + doubt
			}
			return about(all.weak), about(all.unroled)
		}
		check = func(ctx context.Context, user, password string) (string, Role, func() (bool, error), error) {
			all, err := file.get()
			if err != nil {
				return "", "", nil, err
			}
			return all.digest, all.hashes[user].role, func() (bool, error) { return all.right(ctx, user, password) }, nil
		}
	}
	s.who = func(r *http.Request) (identity, error) {
		user, password, ok := r.BasicAuth()
		if !ok {
			return identity{}, fmt.Errorf("%w with your user name and password", errSignIn)
		}
		state, role, right, err := check(r.Context(), user, password)
		if err != nil {
			return identity{}, s.unchecked(r, err)
		}
		return identity{user, role}, s.verify(r, user, password, state, right, "this user name and password are not known here")
	}
	return nil
}

func (s *SignIn) token(auth Auth) error {
	type tokens struct {
		identity
		file *kept[string]
	}
	var all []tokens // the lower role first, so that it counts if two files have the same token
	for _, one := range []struct {
		user      identity
		key, path string
	}{
		{identity{string(RoleViewer), RoleViewer}, "viewer_token_file", auth.ViewerTokenFile},
		{identity{string(RoleOperator), RoleOperator}, "operator_token_file", auth.OperatorTokenFile},
		{identity{auth.User, RoleAdmin}, "token_file", auth.TokenFile},
	} {
		if one.path == "" {
			continue
		}
		file := &kept[string]{key: "admin.auth." + one.key, path: one.path, parse: oneToken}
		token, err := file.get()
		if err != nil {
			return err
		}
		for _, other := range all {
			if same, err := other.file.get(); err == nil && same == token {
				return fmt.Errorf("%s and %s have the same token, so its users have no certain role", other.file.key, file.key)
			}
		}
		all = append(all, tokens{one.user, file})
	}
	if len(all) == 0 {
		return errors.New("admin.auth.mode is token: set admin.auth.token_file, operator_token_file or viewer_token_file")
	}
	s.who = func(r *http.Request) (identity, error) {
		token, ok := authorization(r, "Bearer")
		if !ok {
			return identity{}, fmt.Errorf("%w with the header Authorization: Bearer TOKEN", errSignIn)
		}
		var user identity
		state := ""
		for _, one := range all {
			wanted, err := one.file.get()
			if err != nil {
				return identity{}, s.unchecked(r, err)
			}
			state += wanted + "\n"
			// always compared, so that time reveals nothing
			if is := sameText(token, wanted); is && user.role == "" {
				user = one.identity
			}
		}
		right := func() (bool, error) { return user.role != "", nil }
		return user, s.verify(r, user.name, token, state, right, "this token is not known to this worker")
	}
	return nil
}

func (s *SignIn) proxy(auth Auth) error {
	if auth.Header == "" || len(auth.Proxies) == 0 {
		return errors.New("admin.auth.mode is proxy: set admin.auth.header and admin.auth.proxies")
	}
	of, err := groupsOf(auth)
	if err != nil {
		return err
	}
	s.who = func(r *http.Request) (identity, error) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		peer := from.Addr().Unmap().WithZone("")
		if err != nil || !slices.ContainsFunc(auth.Proxies, func(p netip.Prefix) bool { return p.Contains(peer) }) {
			s.refused(r, "it does not come from one of admin.auth.proxies")
			return identity{}, fmt.Errorf("%w at the reverse proxy in front of this worker: this request does not come from it", errSignIn)
		}
		switch names := r.Header.Values(auth.Header); {
		case len(names) == 0 || len(names) == 1 && names[0] == "":
			return identity{}, fmt.Errorf("%w at the reverse proxy: it has sent no header %s", errSignIn, auth.Header)
		case len(names) > 1: // the proxy's own, and one that a client sent for the proxy to pass on
			s.refused(r, "the header with the name is there more than once")
			return identity{}, fmt.Errorf("%w: the header %s is there %d times", errSignIn, auth.Header, len(names))
		case jobs.ValidUserName(names[0]) != nil:
			return identity{}, fmt.Errorf("%w: the header %s holds no name", errSignIn, auth.Header)
		default:
			role, err := of.role(r)
			if err != nil {
				s.refused(r, err.Error())
			}
			return identity{names[0], role}, err
		}
	}
	return nil
}

// verify returns nil for the right credentials: at once for those that were right a while ago, for
// others as fast as the throttle lets an address try. state is the content of the file that they
// are compared with, and right compares them.
func (s *SignIn) verify(r *http.Request, user, secret, state string, right func() (bool, error), refusal string) error {
	from := sourceOf(r)
	given := s.throttle.credentials(from, user, secret, state)
	if !s.throttle.crowded(from) && s.throttle.remembers(given, s.now()) {
		return nil
	}
	if wait, ok := s.throttle.take(from, s.now()); !ok {
		s.refused(r, "too many sign-ins that were not right came from there, or from everywhere")
		s.throttle.punish(r.Context(), from)
		// a concurrent request with them was accepted in the meantime
		if s.throttle.remembers(given, s.now()) {
			return nil
		}
		return &throttledError{wait}
	}
	good, err := right()
	switch {
	case err != nil:
		return s.unchecked(r, err)
	case !good:
		s.refused(r, refusal)
		return fmt.Errorf("%w: %s", errSignIn, refusal)
	}
	s.throttle.remember(given, s.now())
	return nil
}

// unchecked logs that sign-ins cannot be checked, unless the client has just disconnected.
func (s *SignIn) unchecked(r *http.Request, err error) error {
	if r.Context().Err() == nil && allows(&s.told) {
		s.log.ErrorContext(r.Context(), "sign-ins cannot be checked", "error", err)
	}
	return errUnchecked
}

// refused logs a refused sign-in, at most once a second: a thousand tries a second must not fill
// the disk.
func (s *SignIn) refused(r *http.Request, why string) {
	if allows(&s.told) {
		s.log.WarnContext(r.Context(), "a sign-in is refused", "from", remoteHost(r), "because", why)
	}
}

// allows reports whether a line may be written now. It is written outside of Do, which holds a lock
// that other requests wait for.
func allows(limit *rate.Sometimes) (now bool) {
	limit.Do(func() { now = true })
	return now
}

// sameText compares in a time that reveals neither how much is right nor how long the wanted text
// is.
func sameText(given, wanted string) bool {
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(wanted))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// authorization returns what follows the name of a scheme in a request's header Authorization.
func authorization(r *http.Request, scheme string) (string, bool) {
	name, value, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(value), ok && strings.EqualFold(name, scheme)
}

// kept is a file that is read for each request, and parsed when it has changed.
type kept[T any] struct {
	key, path string
	parse     func(text string) (T, error)

	mu     sync.Mutex // guards the fields below
	parsed bool
	text   string // from which value was parsed
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

// readRegular reads a small file. It refuses one that can be read only once, such as a pipe.
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

// oneSecret parses a file that holds one text, with the newlines that editors append.
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

// users is the content of a users file.
type users struct {
	digest string // of the file
	hashes map[string]hash
	// the highest of all hashes: a comparison takes as long as with this one for every name
	cost  int
	decoy []byte // a hash of that cost, for users that do not exist
	// descriptions of hashes of a low cost, and of users without a role; "" for none
	weak, unroled string

	// turn is held while a hash is computed. That is slow on purpose, and a guesser must not take
	// all processors from the jobs.
	turn chan struct{}

	compare func(hash, password []byte) error // bcrypt's; a test counts the computations
}

// hash is the entry of one user.
type hash struct {
	text []byte
	cost int
	role Role
}

const (
	costMost = 16 // 64 times as slow as bcrypt's own default: some seconds
	// bcrypt's own default; htpasswd's is 5, with which one processor guesses a thousand passwords
	// a second
	costLeast = 10
)

// parseUsers reads lines of name:hash or name:hash:role. Users without a role are viewers. In a
// file without any role they are admins: it may be from before there were roles. Errors name the
// line and never quote it.
func parseUsers(text string) (*users, error) {
	digest := sha256.Sum256([]byte(text))
	u := &users{digest: string(digest[:]), hashes: make(map[string]hash), turn: make(chan struct{}, 1), compare: bcrypt.CompareHashAndPassword}
	var weak, unroled []string
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, code, ok := strings.Cut(line, ":")
		code, word, hasRole := strings.Cut(code, ":")
		role := Role(word)
		cost, err := bcrypt.Cost([]byte(code))
		_, twice := u.hashes[name]
		switch {
		case !ok || name == "":
			return nil, fmt.Errorf("line %d is not name:hash; write it by htpasswd -B -C 12", number)
		case jobs.ValidUserName(name) != nil:
			return nil, fmt.Errorf("line %d: the name is longer than %d bytes, or has blanks around it or control characters in it", number, jobs.MaxUserName)
		case twice:
			return nil, fmt.Errorf("line %d: user %q is there already", number, name)
		case err != nil || len(code) != 60:
			return nil, fmt.Errorf("line %d: user %q has no hash of bcrypt; write it by htpasswd -B -C 12", number, name)
		case hasRole && !slices.Contains(roles, role):
			return nil, fmt.Errorf("line %d: the third field of user %q is no role: it is viewer, operator or admin", number, name)
		case cost > costMost:
			return nil, fmt.Errorf("line %d: the hash of user %q has a cost of %d, more than %d: it would be computed for minutes", number, name, cost, costMost)
		}
		if !hasRole {
			role = RoleViewer
			unroled = append(unroled, strconv.Quote(name))
		}
		u.hashes[name] = hash{[]byte(code), cost, role}
		if cost > u.cost {
			u.cost, u.decoy = cost, []byte(code)
		}
		if cost < costLeast {
			weak = append(weak, fmt.Sprintf("%q (%d)", name, cost))
		}
	}
	if u.decoy == nil {
		return nil, errors.New("it names no user; add one by htpasswd -B -C 12")
	}
	if len(weak) > 0 {
		u.weak = fmt.Sprintf("hashes of a cost below %d are quickly guessed from when the file is stolen: those of %s; write them by htpasswd -B -C 12",
			costLeast, someOf(weak))
	}
	switch {
	case len(unroled) == len(u.hashes):
		for name, h := range u.hashes {
			h.role = RoleAdmin
			u.hashes[name] = h
		}
		u.unroled = "no line has a role, so every user is an admin; append :viewer, :operator or :admin to each line"
	case len(unroled) > 0:
		u.unroled = fmt.Sprintf("users without a role are viewers: %s; append :viewer, :operator or :admin to their lines", someOf(unroled))
	}
	return u, nil
}

// someOf returns the first texts of a list, and the number of the others.
func someOf(list []string) string {
	const most = 3
	text := strings.Join(list[:min(len(list), most)], ", ")
	if n := len(list) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// right reports whether a user has this password. A refusal takes the time of the highest cost
// whether or not the user exists, so that it does not reveal which users exist.
func (u *users) right(ctx context.Context, user, password string) (bool, error) {
	select {
	case u.turn <- struct{}{}:
		defer func() { <-u.turn }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	wanted, exists := u.hashes[user]
	if !exists {
		wanted = hash{text: u.decoy, cost: u.cost}
	}
	if u.compare(wanted.text, []byte(password)) == nil && exists {
		return true, nil
	}
	// Each increment of the cost doubles the time, so computing each cost from this hash's up to
	// one below the highest makes up the difference.
	for cost := wanted.cost; cost < u.cost; cost++ {
		padding := slices.Clone(u.decoy)
		copy(padding[4:6], fmt.Sprintf("%02d", cost)) // $2y$NN$
		_ = u.compare(padding, []byte(password))
	}
	return false, nil
}

// WhoAmI is the identity of the client, as the answering worker sees it.
type WhoAmI struct {
	User admin.Text `json:"user"` // null where users do not sign in
	Mode AuthMode   `json:"mode"`
	Role Role       `json:"role"`
}
