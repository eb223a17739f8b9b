package configs

import (
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lockstep/locks/redistest"
)

// position matches where a problem is in lockstep.yaml.
var position = regexp.MustCompile(`\S*/lockstep\.yaml:(\d+:\d+): `)

func TestFaultsOfTLSFilesAreNamedAtTheirPlace(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	good, other := authority.Issue(t, redistest.Certificate{}), authority.Issue(t, redistest.Certificate{})
	expired := authority.Issue(t, redistest.Certificate{Expires: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC).Add(-24 * time.Hour)})
	dir := writeFiles(t, map[string]string{
		"empty.pem":   "",
		"damaged.pem": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("SECRET")})),
		"locked.key":  string(pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("SECRET")})),
	})
	files := strings.NewReplacer("CA", authority.File(), "GOOD.pem", good.Cert, "GOOD.key", good.Key, "OTHER.key", other.Key,
		"OLD.pem", expired.Cert, "OLD.key", expired.Key, "DIR", dir)
	for name, test := range map[string]struct {
		text string // the value of redis
		want string // "" if there is no problem
		hint string
	}{
		"good":               {"{url: 'rediss://h:1', tls: {ca_file: CA, cert_file: GOOD.pem, key_file: GOOD.key, server_name: redis.internal}}", "", ""},
		"address as name":    {"{url: 'rediss://h:1', tls: {server_name: 10.0.0.1}}", "", ""},
		"certificate alone":  {"{url: 'rediss://h:1', tls: {cert_file: GOOD.pem}}", "1:47: error: redis.tls.cert_file has no effect without redis.tls.key_file [bad-tls]", "name the file with its private key there"},
		"key alone":          {"{url: 'rediss://h:1', tls: {key_file: GOOD.key}}", "1:46: error: redis.tls.key_file has no effect without redis.tls.cert_file [bad-tls]", "name the file with its certificate there"},
		"plain":              {"{url: 'redis://h:1', tls: {ca_file: CA}}", "1:14: error: redis.tls is set, and redis.url is redis://, which does not use TLS [bad-tls]", "write rediss:// in redis.url, or remove redis.tls"},
		"plain cluster":      {"{url: 'redis-cluster://h:1', tls: {ca_file: CA}}", "1:14: error: redis.tls is set, and redis.url is redis-cluster://, which does not use TLS [bad-tls]", "write rediss-cluster:// in redis.url"},
		"plain by default":   {"{tls: {ca_file: CA}}", "1:24: error: redis.tls is set, and redis.url is redis://, which does not use TLS [bad-tls]", "write rediss://"},
		"socket":             {"{url: 'unix:///s', tls: {ca_file: CA}}", "1:42: warning: redis.tls has no effect: redis.url is unix, which uses no network [unused]", ""},
		"missing":            {"{url: 'rediss://h:1', tls: {ca_file: DIR/none}}", "1:45: error: redis.tls.ca_file \"DIR/none\": no such file or directory [unreadable]", "correct the path"},
		"folder":             {"{url: 'rediss://h:1', tls: {ca_file: DIR}}", "1:45: error: redis.tls.ca_file \"DIR\": it is not a regular file [unreadable]", "name a PEM file"},
		"empty":              {"{url: 'rediss://h:1', tls: {ca_file: DIR/empty.pem}}", "1:45: error: redis.tls.ca_file \"DIR/empty.pem\": it has no certificate [bad-tls]", "it must have the lines of a PEM file"},
		"key as authority":   {"{url: 'rediss://h:1', tls: {ca_file: GOOD.key}}", "1:45: error: redis.tls.ca_file \"GOOD.key\": it has no certificate [bad-tls]", "it must have the lines"},
		"damaged":            {"{url: 'rediss://h:1', tls: {ca_file: DIR/damaged.pem}}", "1:45: error: redis.tls.ca_file \"DIR/damaged.pem\": its certificate 1 cannot be parsed [bad-tls]", "to convert a DER file"},
		"certificate as key": {"{url: 'rediss://h:1', tls: {cert_file: GOOD.pem, key_file: GOOD.pem}}", "key_file \"GOOD.pem\": it has no private key [bad-tls]", "BEGIN PRIVATE KEY"},
		"key of another":     {"{url: 'rediss://h:1', tls: {cert_file: GOOD.pem, key_file: OTHER.key}}", "key_file \"OTHER.key\": it is not the key of the certificate in redis.tls.cert_file GOOD.pem [bad-tls]", "issued together"},
		"passphrase":         {"{url: 'rediss://h:1', tls: {cert_file: GOOD.pem, key_file: DIR/locked.key}}", "key_file \"DIR/locked.key\": the key has a passphrase [bad-tls]", "openssl pkey"},
		"expired":            {"{url: 'rediss://h:1', tls: {cert_file: OLD.pem, key_file: OLD.key}}", "1:47: warning: the certificate in redis.tls.cert_file expired on 2026-01-01 03:04Z: Redis refuses it [bad-tls]", "renew it"},
		"name with a port":   {"{url: 'rediss://h:1', tls: {server_name: 'redis.internal:1'}}", "error: bad host name \"redis.internal:1\" for redis.tls.server_name: it has a port", "did you mean \"redis.internal\"?"},
		"parameter":          {"{url: 'redis-cluster://h?tls=true'}", "1:14: error: bad Redis URL for redis.url: it has the unknown parameter tls [bad-url]", "for TLS, write rediss-cluster://"},
		"unverified":         {"{url: 'rediss://h?skip_verify=true'}", "it has the unknown parameter skip_verify", "certificates are always verified"},
		"sentinel user":      {"{url: 'rediss-sentinel://h?master=m', sentinel: {user: u}}", "error: redis.sentinel.user has no password, so it would not be sent", "add password_file: PATH"},
		"sentinel unused":    {"{url: 'rediss://h', sentinel: {password_file: p}}", "warning: redis.sentinel.password_file has no effect: redis.url is not redis-sentinel:// or rediss-sentinel:// [unused]", ""},
		"sentinel inline":    {"{url: 'redis-sentinel://h?master=m', sentinel: {password: SECRET}}", "warning: redis.sentinel.password contains a secret [inline-secret]", "redis.sentinel.password_file"},
		"sentinel twice":     {"{url: 'redis-sentinel://h?master=m', sentinel: {password: '${P}', password_file: p}}", "warning: redis.sentinel.password_file has no effect: redis.sentinel.password is set [unused]", "keep one of them"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(writeFiles(t, map[string]string{"lockstep.yaml": "redis: " + files.Replace(test.text) + "\nlocks: {lease: 40s}"}), "lockstep.yaml")
			config, err := Load(Options{Paths: []string{path}, Environ: []string{"P=SECRET"}})
			var found Problems
			if !errors.As(err, &found) {
				found = config.Warnings
			}
			got := position.ReplaceAllString(found.Error(), "$1: ")
			if test.want == "" {
				if len(found.List) > 0 {
					t.Errorf("got %s, want no problem", got)
				}
				return
			}
			if len(found.List) != 1 || !strings.Contains(got, files.Replace(test.want)) || !strings.Contains(got, test.hint) {
				t.Errorf("got\n%s\nwant %s, %s", got, files.Replace(test.want), test.hint)
			}
			if strings.Contains(got, "SECRET") {
				t.Errorf("a secret is revealed: %s", got)
			}
		})
	}
}

func TestOthersMustNotReadTheKeyOfTheClient(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	files := authority.Issue(t, redistest.Certificate{})
	for _, path := range []string{authority.File(), files.Cert, files.Key} {
		if err := os.Chmod(path, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(writeFiles(t, map[string]string{"lockstep.yaml": fmt.Sprintf("redis: {url: 'rediss://h', tls: {ca_file: %s, cert_file: %s, key_file: %s}}",
		authority.File(), files.Cert, files.Key)}), "lockstep.yaml")
	c, err := Load(Options{Paths: []string{path}, Environ: []string{}, Rights: true})
	if err != nil {
		t.Fatal(err)
	}
	if list := c.Warnings.List; len(list) != 1 || list[0].File != files.Key || !strings.Contains(list[0].Message, "the group of this secret of redis.tls.key_file can read") {
		t.Errorf("got %v, want a warning of the key alone", c.Warnings)
	}
}

func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	first, second := authority.Issue(t, redistest.Certificate{}), authority.Issue(t, redistest.Certificate{})
	dir := t.TempDir()
	settings := TLS{CAFile: authority.File(), CertFile: filepath.Join(dir, "cert"), KeyFile: filepath.Join(dir, "key")}
	var serials []string
	for _, files := range []redistest.Files{first, second} {
		for from, to := range map[string]string{files.Cert: settings.CertFile, files.Key: settings.KeyFile} {
			text, err := os.ReadFile(from)
			if err == nil {
				err = os.WriteFile(to, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		config, err := settings.Config()
		if err != nil {
			t.Fatal(err)
		}
		serials = append(serials, fmt.Sprint(config.Certificates[0].Leaf.SerialNumber))
	}
	if serials[0] == serials[1] {
		t.Errorf("both configurations have the certificate %s", serials[0])
	}
}

func TestLoginOfTheSentinelsIsHidden(t *testing.T) {
	t.Parallel()
	c := settings(t, nil, []string{"LOCKSTEP_REDIS__URL=redis-sentinel://h?master=m", "LOCKSTEP_REDIS__SENTINEL__USER=u", "LOCKSTEP_REDIS__SENTINEL__PASSWORD=SECRET"})
	if user, password, err := c.Settings.Redis.Sentinel.Login(); user != "u" || password != "SECRET" || err != nil {
		t.Errorf("got %s, %s, %v", user, password, err)
	}
	printed := fmt.Sprint(c.Settings) + fmt.Sprintf("%+v", c.Settings) + fmt.Sprint(c.Values())
	if strings.Contains(printed, "SECRET") {
		t.Errorf("printed %s", printed)
	}
	if _, _, err := (Sentinel{PasswordFile: "/none"}).Login(); err == nil || err.Error() != "redis.sentinel.password_file /none: no such file or directory" {
		t.Errorf("got %v", err)
	}
}
