package fencepost_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fencepost/fencepost/clients/go/fencepost"
)

// authority signs certificates into a folder.
type authority struct {
	folder string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{folder: t.TempDir()}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	a.cert = must(x509.ParseCertificate(a.write("ca", a.cert, a.cert, a.key, a.key)))
	return a
}

func (a *authority) path(name string) string { return filepath.Join(a.folder, name) }

func (a *authority) sign(name string) {
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	a.write(name, cert, a.cert, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), a.key)
}

func (a *authority) write(name string, cert, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) []byte {
	der := must(x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, parentKey))
	a.put(name+".pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	a.put(name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))})))
	return der
}

func (a *authority) put(name, text string) {
	if err := os.WriteFile(a.path(name), []byte(text), 0o600); err != nil {
		panic(err)
	}
}

func TestCertificatesAndBearerTokensAreSentAndReadAgain(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.sign("server")
	a.sign("client")
	a.put("bearers", fmt.Sprintf("ci:%x\n", sha256.Sum256([]byte("secret"))))
	a.put("config.toml", fmt.Sprintf(`
listen = ["127.0.0.1:0", "unix:%[1]s/socket"]
[tls]
certificate = "%[1]s/server.pem"
key = "%[1]s/server.key"
client_ca = "%[1]s/ca.pem"
client_auth = "optional"
listeners = "tcp"
[auth]
bearer_file = "%[1]s/bearers"
[[auth.rules]]
identities = ["token:ci", "cn:client"]
namespaces = ["jobs"]
locks = ["a"]
verbs = ["acquire"]
[namespaces.jobs.embedded]
path = ":memory:"
`, a.folder))
	server := exec.Command(os.Getenv("FENCEPOST_BIN"), "serve", "--config", a.path("config.toml"), "--ready-file", a.path("ready"))
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	until(t, "the server is ready", func() bool { _, err := os.Stat(a.path("ready")); return err == nil })
	addr, _, _ := strings.Cut(string(must(os.ReadFile(a.path("ready")))), "\n")

	acquire := func(address string, options ...fencepost.Option) *fencepost.Error {
		t.Helper()
		client := must(fencepost.New(background, address, append(options, fencepost.WithNamespace("jobs"))...))
		defer client.Close(background)
		err := client.Do(background, "a", func(context.Context, *fencepost.Lock) error { return nil })
		var failed *fencepost.Error
		if err != nil && !errors.As(err, &failed) {
			t.Error(err)
		}
		return failed
	}
	a.put("token", "secret\n")
	ca, token := fencepost.WithTLSFiles(a.path("ca.pem"), "", ""), fencepost.WithBearerFile(a.path("token"))
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	for what, err := range map[string]*fencepost.Error{
		"mutual TLS":      acquire(addr, fencepost.WithTLSFiles(a.path("ca.pem"), a.path("client.pem"), a.path("client.key"))),
		"a bearer token":  acquire("https://"+addr, ca, token),
		"a configuration": acquire(addr, fencepost.WithTLS(&tls.Config{RootCAs: roots}), token),
		"a Unix socket":   acquire("unix:"+a.path("socket"), token),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := acquire("https://"+addr, ca); err == nil || err.Code != codes.Unauthenticated {
		t.Errorf("no credentials: %v", err)
	}
	if err := acquire("https://"+addr, token); err == nil || err.Reason != "TLS" || !strings.Contains(err.Message, "certificate of "+addr+" is refused") {
		t.Errorf("the CA of the system: %v", err)
	}

	client := must(fencepost.New(background, "https://"+addr, ca, token, fencepost.WithNamespace("jobs")))
	defer client.Close(background)
	var failed *fencepost.Error
	if _, err := client.Acquire(background, "other"); !errors.As(err, &failed) || failed.Code != codes.PermissionDenied || !errors.Is(err, fencepost.ErrDenied) {
		t.Error(err)
	}
	a.put("token", "wrong")
	if err := acquire("https://"+addr, ca, token); !errors.Is(err, fencepost.ErrUnauthenticated) {
		t.Error(err)
	}
	if err := must(client.Acquire(background, "a")).Release(background); err != nil {
		t.Error(err)
	}
}
