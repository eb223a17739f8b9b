package configs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"lockstep/jobs"
	"lockstep/scheduler/cronspec"
)

// checks are the functions that the tags "check" and "keys" of the file types name. Each returns
// the fault of a text, or nil.
var checks = map[string]func(s string) *fault{
	"redis-url":   checkRedisURL,
	"namespace":   shaped(namespaceShape, fault{code: CodeName, kind: "namespace", own: true, want: "1 to 64 letters, digits, - and _"}),
	"worker-name": shaped(workerNameShape, fault{code: CodeName, kind: "name", want: "1 to 64 letters, digits, -, _ and ."}),
	"queue":       checkQueue,
	"address":     checkAddress,
	"user":        checkUser,
	"network":     checkNetwork,
	"host":        checkHost,
	"server-name": checkServerName,
	"base-path":   checkBasePath,
	"group":       shaped(groupShape, fault{code: CodeName, kind: "group", want: "a name without commas, | and blanks around it"}),
	"timezone":    checkTimezone,
	"handler":     checkHandler,
	"arg":         checkArg,
	"http-url":    checkHTTPURL,
	"header":      checkHeader,
	"env":         checkVariable,
	"lock-key":    checkLockKey,
	"permit":      checkPermit,
	"target":      checkTarget,
	"service-url": checkServiceURL,
	"grace":       checkGrace,
	"inherited":   checkInherited,
	"size":        argsSizes.check,
	"space":       spaceSizes.check,
	"tail":        tailSizes.check,
}

// shaped returns a check that accepts what a pattern matches.
func shaped(shape func() *regexp.Regexp, f fault) func(s string) *fault {
	f.reason = "it takes " + f.want
	return func(s string) *fault {
		if shape().MatchString(s) {
			return nil
		}
		wrong := f
		return &wrong
	}
}

// graceAuto is the locks.grace that depends on the leases and on the topology.
const graceAuto = "auto"

// checkGrace accepts auto or a duration. The comparison with the lease comes later, when both are
// known.
func checkGrace(s string) *fault {
	if s == graceAuto {
		return nil
	}
	d, wrong := parseDuration(s)
	switch {
	case wrong != nil && nearest(s, []string{graceAuto}) != "":
		wrong.hint = didYouMean(graceAuto)
		return wrong
	case wrong != nil:
		return wrong
	case d < 2*time.Second || d > time.Hour:
		return &fault{code: CodeRange, kind: "duration", reason: "it must be auto, or from 2s to 1h", want: "auto, or a duration from 2s to 1h"}
	}
	return nil
}

// sizes describes the sizes that a setting accepts.
type sizes struct {
	units       []sizeUnit // smallest first
	names       string     // of the units
	least, most int64
	allowed     string // smallest to largest, as users write it
	example     string
	hint        string
}

// sizeUnit is a unit of sizes.
type sizeUnit struct {
	name  string
	bytes int64
}

var (
	// argsSizes: larger args belong in a store.
	argsSizes = sizes{
		units: []sizeUnit{{"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}}, names: "B, KiB or MiB",
		least: 1, most: 16 << 20, allowed: "1B to 16MiB", example: "128KiB", hint: "write 64KiB, 128KiB or 1MiB",
	}
	// tailSizes: each attempt stores that much in Redis.
	tailSizes = sizes{
		units: argsSizes.units, names: argsSizes.names,
		least: 1 << 10, most: jobs.MaxTail, allowed: "1KiB to 1MiB", example: "16KiB", hint: "write 16KiB, 256KiB or 1MiB",
	}
	// spaceSizes are shares of a server's memory.
	spaceSizes = sizes{
		units: []sizeUnit{{"MiB", 1 << 20}, {"GiB", 1 << 30}}, names: "MiB or GiB",
		least: 1 << 20, most: 1 << 40, allowed: "1MiB to 1024GiB", example: "2GiB", hint: "write 512MiB or 2GiB",
	}
)

// check accepts a number of bytes with a unit.
func (z sizes) check(s string) *fault {
	if _, err := z.parse(s); err != nil {
		return &fault{code: CodeRange, kind: "size", reason: err.Error(), want: "a size such as " + z.example, hint: z.hint}
	}
	return nil
}

// format writes a size with the largest unit that it is a whole number of.
func (z sizes) format(bytes int64) string {
	for _, unit := range slices.Backward(z.units) {
		if bytes%unit.bytes == 0 {
			return fmt.Sprint(bytes/unit.bytes, unit.name)
		}
	}
	return fmt.Sprint(bytes)
}

// parse returns a size in bytes.
func (z sizes) parse(s string) (int64, error) {
	for _, unit := range slices.Backward(z.units) { // KiB ends with B
		number, ok := strings.CutSuffix(s, unit.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		switch {
		case err != nil:
			return 0, fmt.Errorf("it is not a whole number with a unit, %s", z.names)
		case n < 1 || n > z.most/unit.bytes || n*unit.bytes < z.least:
			return 0, fmt.Errorf("it must be from %s", z.allowed)
		}
		return n * unit.bytes, nil
	}
	return 0, fmt.Errorf("it has no unit, %s", z.names)
}

// redisSchemes are the schemes of redis.url.
var redisSchemes = []string{"redis", "rediss", "redis-sentinel", "rediss-sentinel", "redis-cluster", "rediss-cluster", "unix"}

// topology returns the scheme of a redis.url without TLS ("redis" for rediss://), and whether it
// has TLS.
func topology(scheme string) (plain string, encrypted bool) {
	rest, encrypted := strings.CutPrefix(scheme, "rediss")
	if encrypted {
		return "redis" + rest, true
	}
	return scheme, false
}

// redisParameters are the parameters that redis.url accepts after the ?, by topology. The client
// library knows more of them. Those would change its retries, timeouts, pools and routes, on which
// the locks depend.
var redisParameters = map[string][]string{"redis": nil, "redis-sentinel": {"master"}, "redis-cluster": nil, "unix": {"db"}}

// tlsParameters are parameters that turn on TLS in the URLs of other programs.
var tlsParameters = []string{"tls", "ssl", "use_tls", "use_ssl", "secure"}

// unverified are parameters that turn off the verification of certificates in those URLs.
var unverified = []string{"skip_verify", "insecure", "insecure_skip_verify", "ssl_cert_reqs", "tls_insecure"}

// pattern returns a regular expression that is compiled on first use. Every guard of a command
// initializes this package and uses none of its expressions.
func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// parameterName matches a name that an error may quote. Any other text may be a secret that was
// pasted there.
var parameterName = pattern(`^[A-Za-z][A-Za-z_-]{0,31}$`)

// unknownParameter describes the first unknown parameter of a query, or returns "". It quotes no
// value. It returns the name only if an error may quote it.
func unknownParameter(query string, known []string) (name, reason string) {
	for pair := range strings.SplitSeq(query, "&") {
		name, _, assigned := strings.Cut(pair, "=")
		switch {
		case pair == "" || slices.Contains(known, name):
		case assigned && parameterName().MatchString(name):
			return name, "it has the unknown parameter " + name
		default:
			return "", "it has an unknown parameter"
		}
	}
	return "", ""
}

// Embedded is the redis.url of a Redis inside the process.
const Embedded = "embedded"

// bareAddress matches a host with a port. Without a port the text might be anything, even a
// password, and errors must not quote it.
var bareAddress = pattern(`^[A-Za-z0-9][A-Za-z0-9.-]*:[0-9]+(/[0-9]+)?$`)

// checkRedisURL parses the URL itself, because package net/url does not support lists of hosts, and
// because its errors may quote a password.
func checkRedisURL(s string) *fault {
	bad := func(reason, hint string) *fault {
		return &fault{code: CodeURL, kind: "Redis URL", reason: reason, want: "a Redis URL", hint: hint}
	}
	if s == Embedded {
		return nil
	}
	const shape = "write redis://host:6379/0, or embedded"
	scheme, rest, ok := strings.Cut(s, "://")
	switch {
	case !ok && nearest(s, []string{Embedded}) != "":
		return bad("it has no scheme", didYouMean(Embedded))
	case !ok && bareAddress().MatchString(s):
		return bad("it has no scheme", didYouMean("redis://"+s))
	case !ok:
		return bad("it has no scheme", shape)
	}
	rest, query, _ := strings.Cut(rest, "?")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		if strings.ContainsAny(rest[:at], "/#[] ") {
			return bad("the password has a character that a URL must not contain",
				"write it percent-encoded (/ is %2F), or use redis.password_file")
		}
		rest = rest[at+1:]
	}
	hosts, db, hasDB := strings.Cut(rest, "/")
	parameters, err := url.ParseQuery(query)
	if err != nil {
		return bad("the part after the ? is not key=value", "")
	}
	// Do not quote it: it may be the end of a password.
	if strings.Contains(query, "@") {
		return bad("the password has a character that a URL must not contain",
			"write it percent-encoded (? is %3F), or use redis.password_file")
	}
	kind, encrypted := topology(scheme)
	if known, is := redisParameters[kind]; is {
		if name, reason := unknownParameter(query, known); reason != "" {
			hint := scheme + ":// takes no parameters; the database goes after the /: " + scheme + "://host:port/0"
			switch {
			case !encrypted && kind != "unix" && slices.Contains(tlsParameters, strings.ToLower(name)):
				hint = "for TLS, write " + strings.Replace(scheme, "redis", "rediss", 1) + "://"
			case slices.Contains(unverified, strings.ToLower(name)):
				hint = "certificates are always verified; name the file of the authority's in redis.tls.ca_file"
			case len(known) > 0:
				hint = scheme + ":// takes " + strings.Join(known, ", ")
			case kind == "redis-cluster":
				hint = scheme + ":// takes no parameters"
			}
			f := bad(reason, hint)
			f.want += ": " + reason + "; " + hint
			return f
		}
	}
	switch kind {
	case "unix":
		if hosts != "" || db == "" {
			return bad("it has no absolute path", "write unix:///path/to/redis.sock")
		}
		return nil
	case "redis":
		if strings.Contains(hosts, ",") {
			return bad("it has several hosts", "write "+scheme+"-cluster:// or "+scheme+"-sentinel://")
		}
	case "redis-sentinel":
		if parameters.Get("master") == "" {
			return bad("it has no master", "write "+scheme+"://host:26379,host:26379/0?master=NAME")
		}
	case "redis-cluster":
		if hasDB && db != "" && db != "0" {
			return bad("a cluster only has database 0", "leave out the part after the /")
		}
	default:
		if likely := nearest(scheme, redisSchemes); likely != "" {
			return bad("its scheme is not "+strings.Join(redisSchemes, ", "), didYouMean(likely+"://"))
		}
		return bad("its scheme is not "+strings.Join(redisSchemes, ", "), shape)
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if reason := badHost(host); reason != "" {
			return bad(reason, "")
		}
	}
	if n, err := strconv.Atoi(db); hasDB && db != "" && (err != nil || n < 0) {
		return bad("the part after the / is not a database number", "write "+scheme+"://host:port/0")
	}
	return nil
}

// badHost describes the mistake in a host or host:port, or returns "".
func badHost(s string) string {
	host, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host, port = s[:i], s[i+1:]
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "the port is not a number from 1 to 65535"
		}
	}
	switch {
	case host == "":
		return "it has no host"
	case strings.ContainsAny(strings.Trim(host, "[]"), " /[]"), strings.Contains(host, ":") && host[0] != '[':
		return "its host is not valid"
	}
	return ""
}

var (
	// namespaceShape is the rule of package locks, as a pattern for the schema. A test compares the
	// two.
	namespaceShape = pattern(`^[A-Za-z0-9_-]{1,64}$`)
	// workerNameShape refuses names that package locks would replace or cut.
	workerNameShape = pattern(`^[A-Za-z0-9_.-]{1,64}$`)
)

// checkQueue refuses names that asynq would treat as a hash tag, and names that are hard to type.
func checkQueue(s string) *fault {
	f := &fault{code: CodeQueue, kind: "queue", own: true, want: "the name of a queue"}
	if f.reason = badListed(s, "{ and } have a meaning in Redis", 100); f.reason == "" {
		return nil
	}
	return f
}

// badListed describes the mistake in a name that users write into lists such as a=1,b=2, or returns
// "". braces is the reason why the name must not contain braces.
func badListed(s, braces string, longest int) string {
	switch {
	case s == "":
		return "it is empty"
	case strings.ContainsAny(s, "{}"):
		return braces
	case strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == ',' || r == '=' }):
		return "it contains a blank, a comma or ="
	case len(s) > longest:
		return fmt.Sprintf("it is longer than %d bytes", longest)
	}
	return ""
}

func checkAddress(s string) *fault {
	f := &fault{code: CodeAddress, kind: "address", want: "host:port"}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		f.reason = "it is not host:port"
		if _, err := strconv.ParseUint(s, 10, 16); err == nil {
			f.hint = didYouMean("127.0.0.1:" + s)
		} else {
			f.hint = "write 127.0.0.1:9620"
		}
		return f
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		f.reason = "the port is not a number from 0 to 65535"
		return f
	}
	if strings.ContainsAny(host, " /") {
		f.reason = "the host contains an invalid character"
		f.hint = "write host:port, without http://"
		return f
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "" && host != "localhost" {
		// as admin.Listen does
		f.reason = "the host is not an IP address"
		f.hint = "write " + net.JoinHostPort("127.0.0.1", port) + ", or " + net.JoinHostPort("0.0.0.0", port) + " for all addresses of the machine"
		return f
	}
	return nil
}

// checkUser refuses names with which no user can sign in, and names that would not identify a user
// in the audit.
func checkUser(s string) *fault {
	f := &fault{code: CodeName, kind: "name", want: "a name without a colon, up to 200 bytes"}
	switch err := jobs.ValidUserName(s); {
	case strings.Contains(s, ":"):
		f.reason = "it contains a colon, which ends the name at sign-in"
	case err != nil:
		f.reason = err.Error()
	default:
		return nil
	}
	return f
}

// hostShape matches a host name as a browser sends it: labels of letters, digits, - and _.
var hostShape = pattern(`^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*$`)

// checkHost accepts a host name without a port, in lower case, so that names can be compared as
// text.
func checkHost(s string) *fault {
	f := &fault{code: CodeAddress, kind: "host name", want: "a host name in lower case, without a port"}
	host, _, err := net.SplitHostPort(s)
	switch {
	case hostShape().MatchString(s) && len(s) <= 253:
		return nil
	case strings.Contains(s, "://"):
		f.reason, f.hint = "it is a URL", "write the name alone, without a scheme"
	case err == nil && hostShape().MatchString(host):
		f.reason, f.hint = "it has a port", didYouMean(host)
	case hostShape().MatchString(strings.ToLower(s)):
		f.reason, f.hint = "it has capital letters", didYouMean(strings.ToLower(s))
	case strings.Contains(s, "*"):
		f.reason, f.hint = "it has a wildcard", "list each name"
	default:
		f.reason = "it is not a host name"
	}
	return f
}

// checkServerName accepts a name that a certificate may have.
func checkServerName(s string) *fault {
	if _, err := netip.ParseAddr(s); err == nil {
		return nil
	}
	f := checkHost(s)
	if f != nil {
		f.want = "a host name in lower case or an IP address, without a port"
	}
	return f
}

// basePathShape matches / and paths that need no escaping in a URL.
var basePathShape = pattern(`^(/|(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+)$`)

// ownPaths are the first parts of the paths of the server itself.
var ownPaths = []string{"api", "livez", "metrics", "readyz", "static"}

// checkBasePath accepts a path without a slash at its end. It refuses one with which paths of the
// server itself begin: the server could not know whether a proxy has removed it from a request.
func checkBasePath(s string) *fault {
	f := &fault{code: CodeURL, kind: "path", want: "a path such as /lockstep"}
	first, _, _ := strings.Cut(strings.TrimPrefix(s, "/"), "/")
	likely := "/" + strings.Trim(s, "/")
	switch {
	case slices.Contains(ownPaths, first):
		f.reason, f.hint = fmt.Sprintf("the server has paths that begin with /%s", first), didYouMean("/lockstep"+likely)
	case basePathShape().MatchString(s) && len(s) <= 200:
		return nil
	case strings.Contains(s, "://"):
		f.reason, f.hint = "it is a URL", "write its path alone"
	case basePathShape().MatchString(likely) && len(likely) <= 200:
		f.reason, f.hint = "it must begin with a slash, and not end with one", didYouMean(likely)
	default:
		f.reason = "it is not a path of letters, digits, -, ., _ and ~, of up to 200 bytes"
	}
	return f
}

// groupShape matches a group that a header with a list of groups can name.
var groupShape = pattern(`^[^,|\s]([^,|\r\n]{0,198}[^,|\s])?$`)

// checkNetwork accepts an address or a network.
func checkNetwork(s string) *fault {
	network, err := parseNetwork(s)
	f := &fault{code: CodeAddress, kind: "network", want: "an IP address, or a network such as 10.1.0.0/16"}
	switch {
	case err != nil:
		f.reason = "it is not an IP address, nor a network such as 10.1.0.0/16"
	case network.Masked() != network:
		f.reason = "it has bits after its prefix"
		f.hint = didYouMean(network.Masked().String())
	default:
		return nil
	}
	return f
}

// parseNetwork parses a network. An address is a network of one address.
func parseNetwork(s string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(address.Unmap().WithZone(""), address.Unmap().BitLen()), nil
	}
	return netip.ParsePrefix(s)
}

func checkTimezone(s string) *fault {
	if _, err := cronspec.LoadZone(s); err != nil {
		return cronFault(err, CodeTimezone, "timezone", "the name of a time zone")
	}
	return nil
}

func checkHandler(s string) *fault {
	err := jobs.ValidHandlerName(s)
	if err == nil {
		return nil
	}
	return &fault{code: CodeName, kind: "handler name", own: true, want: "the name of a handler",
		reason: strings.TrimPrefix(err.Error(), fmt.Sprintf("handler name %q: ", s))}
}

func checkHTTPURL(s string) *fault {
	f := &fault{code: CodeURL, kind: "URL", own: true, want: "a http:// or https:// URL"}
	u, err := url.Parse(s)
	switch {
	case err != nil && !strings.Contains(s, "@"):
		f.reason = strings.TrimPrefix(err.Error(), fmt.Sprintf("parse %q: ", s))
	case err != nil:
		// an error of net/url may quote part of a password
		f.reason = "it is not a URL"
	case u.Scheme == "" || u.Opaque != "":
		f.reason = "it has no scheme"
		f.hint = didYouMean("https://" + s)
		if strings.Contains(s, "@") || len(s) > 80 {
			f.hint = "write https://host/path"
		}
	case u.Scheme != "http" && u.Scheme != "https":
		f.reason = "its scheme is not http or https"
	case u.Hostname() == "":
		f.reason = "it has no host"
		f.hint = "write https://host/path"
	default:
		return nil
	}
	return f
}

var headerName = pattern("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

func checkHeader(s string) *fault {
	if headerName().MatchString(s) {
		return nil
	}
	return &fault{code: CodeName, kind: "header name", reason: "it takes letters, digits and -"}
}

func checkVariable(s string) *fault {
	f := &fault{code: CodeName, kind: "variable name"}
	switch {
	case strings.Contains(s, "${"):
		f.reason = "${...} is replaced in values only"
	case s == "" || strings.ContainsAny(s, "=\x00"):
		f.reason = "it is empty or has = in it"
	default:
		return nil
	}
	return f
}

// checkInherited accepts the name of a variable, or the beginning of one followed by a star.
func checkInherited(s string) *fault {
	f := &fault{code: CodeName, kind: "variable name"}
	switch name := strings.TrimSuffix(s, "*"); {
	case s == "" || strings.ContainsAny(name, "=*\x00"):
		f.reason = "it is empty, or has = or * in it"
		f.hint = "write a name, or its beginning with * at the end: LC_*"
	case isSetting(s):
		f.reason = "commands never inherit it, because it may contain the password of Redis"
		f.hint = "give it to the job that needs it: env: {" + s + ": \"${" + s + "}\"}"
	default:
		return nil
	}
	return f
}

// checkArg refuses a path: a name in it would hide nothing.
func checkArg(s string) *fault {
	f := &fault{code: CodeName, kind: "name of an arg", want: "the name of an arg"}
	last := s[strings.LastIndexByte(s, '.')+1:]
	switch {
	case strings.ContainsAny(last, "[]{}*") || strings.ContainsFunc(s, unicode.IsControl):
		f.reason = "it takes a name, as it is written in the args"
	case last == "":
		f.reason = "it ends with a dot"
	case last != s:
		f.reason, f.hint = "it is a path; a name counts at any depth of the args", didYouMean(last)
	default:
		return nil
	}
	return f
}

func checkLockKey(s string) *fault {
	_, err := jobs.ParseKey(s)
	if err == nil {
		return nil
	}
	return &fault{code: CodeLockKey, kind: "lock key", own: true, want: "a lock key",
		reason: strings.TrimPrefix(err.Error(), fmt.Sprintf("lock key %.100q: ", s))}
}

// checkPermit refuses names that are only valid in a lock key, names that lockstep lock exec could
// not specify, and the names under which runs hold their job and themselves.
func checkPermit(s string) *fault {
	f := &fault{code: CodeName, kind: "name of permits", want: "a name for permits"}
	f.reason = badListed(s, "permits have one name for all runs, so it must not contain { or }", 512)
	switch {
	case f.reason != "":
	case strings.HasPrefix(s, jobs.JobResource("")), strings.HasPrefix(s, jobs.RunResource("")):
		f.reason = "such names are reserved for the locks of jobs and runs"
	default:
		return nil
	}
	return f
}

// cronFault turns an error of cronspec into a fault of the wrong part.
func cronFault(err error, code, kind, want string) *fault {
	f := &fault{code: code, kind: kind, own: true, reason: err.Error(), want: want}
	if e, ok := errors.AsType[*cronspec.Error](err); ok {
		f.reason, f.hint = e.Problem, e.Hint
		if e.Field != "" {
			f.reason = fmt.Sprintf("%s %s: %s", e.Field, quote(e.Part), e.Problem)
		}
		f.part, f.offset = e.Part, e.Offset
	}
	return f
}
