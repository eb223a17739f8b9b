package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// An Authority signs certificates for servers and clients of a test. All of its files are in a
// folder of the test.
type Authority struct {
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// A Certificate describes a certificate to issue. The zero value is valid for 127.0.0.1 and
// localhost, for a day.
type Certificate struct {
	Names   []string  // host names and IP addresses
	Expires time.Time // may have passed
}

// Files are the paths of the PEM files of a certificate and its key.
type Files struct{ Cert, Key string }

// NewAuthority makes an authority for one test.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{dir: tb.TempDir()}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "redistest"}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	files := a.sign(tb, template)
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		tb.Fatal(err)
	}
	a.certificate, a.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	if err := os.Rename(files.Cert, a.File()); err != nil {
		tb.Fatal(err)
	}
	return a
}

// File returns the path of the PEM file with the authority's own certificate.
func (a *Authority) File() string { return filepath.Join(a.dir, "ca.pem") }

// Issue writes a certificate with a new key into two new files.
func (a *Authority) Issue(tb testing.TB, c Certificate) Files {
	tb.Helper()
	if c.Names == nil {
		c.Names = []string{"127.0.0.1", "localhost"}
	}
	if c.Expires.IsZero() {
		c.Expires = time.Now().Add(24 * time.Hour)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: c.Names[0]}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: c.Expires,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range c.Names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return a.sign(tb, template)
}

// sign signs with the key of the authority, or for the authority itself with the new key.
func (a *Authority) sign(tb testing.TB, template *x509.Certificate) Files {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		tb.Fatal(err)
	}
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = template, key
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	name := filepath.Join(a.dir, template.SerialNumber.Text(36))
	files := Files{Cert: name + ".pem", Key: name + ".key"}
	for path, block := range map[string]*pem.Block{
		files.Cert: {Type: "CERTIFICATE", Bytes: certificate}, files.Key: {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return files
}

// TLS makes servers use TLS on their ports, and among themselves. [Authority.TLS] makes one. Their
// Unix sockets remain plain.
type TLS struct {
	CA     string // the file with the authority of the clients' certificates
	Server Files
	// Anonymous accepts clients without a certificate.
	Anonymous bool

	client *tls.Config
}

// TLS returns what servers need that share one certificate, which the authority issues.
func (a *Authority) TLS(tb testing.TB, server Certificate) *TLS {
	tb.Helper()
	client, err := tls.LoadX509KeyPair(a.Issue(tb, Certificate{}).paths())
	if err != nil {
		tb.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.certificate)
	return &TLS{CA: a.File(), Server: a.Issue(tb, server),
		client: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{client}, MinVersion: tls.VersionTLS12}}
}

func (f Files) paths() (cert, key string) { return f.Cert, f.Key }

// Client returns a fresh configuration for a client with a certificate of the authority, or nil
// without TLS.
func (t *TLS) Client() *tls.Config {
	if t == nil {
		return nil
	}
	return t.client.Clone()
}

// scheme returns the scheme of a URL, with an "s" for TLS: redis, rediss-cluster.
func (t *TLS) scheme(topology string) string {
	if t == nil {
		return "redis" + topology
	}
	return "rediss" + topology
}

// lines returns the lines of redis.conf that make a server listen on a port, with TLS unless t is
// nil.
func (t *TLS) lines(k kind, port int) []string {
	if t == nil {
		return []string{"port " + strconv.Itoa(port)}
	}
	lines := []string{
		"port 0",
		"tls-port " + strconv.Itoa(port),
		"tls-ca-cert-file " + strconv.Quote(t.CA),
		"tls-cert-file " + strconv.Quote(t.Server.Cert),
		"tls-key-file " + strconv.Quote(t.Server.Key),
		"tls-replication yes", // and how sentinels talk to servers and to each other
		fmt.Sprintf("tls-auth-clients %s", map[bool]string{true: "optional", false: "yes"}[t.Anonymous]),
	}
	if k == clusterNode {
		lines = append(lines, "tls-cluster yes")
	}
	return lines
}
