// Package fencetest has the tests of the package fence, which need drivers: its users need none of them.
package fencetest

import (
	"context"
	"crypto/md5"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// program is the first of these patterns of paths, or names, that is here.
func program(tb testing.TB, names ...string) string {
	for _, name := range names {
		if found, _ := filepath.Glob(name); len(found) > 0 {
			return found[0]
		}
		if found, err := exec.LookPath(name); err == nil {
			return found
		}
	}
	if os.Getenv("CI") == "true" {
		tb.Fatal(names[0], "is missing: scripts/test installs it")
	}
	tb.Skip(names[0], "is missing")
	return ""
}

func freePort() string {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	defer listener.Close()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
}

// server is a process of a user, because root must not run some servers, in a folder of its own.
type server struct {
	testing.TB
	folder    string
	attribute *syscall.SysProcAttr
}

func newServer(tb testing.TB, name string) server {
	s := server{tb, must(os.MkdirTemp("/tmp", "fence")), nil}
	tb.Cleanup(func() { _ = os.RemoveAll(s.folder) })
	owner, err := user.Lookup(name)
	if err != nil || os.Geteuid() != 0 {
		return s
	}
	uid, gid := must(strconv.Atoi(owner.Uid)), must(strconv.Atoi(owner.Gid))
	if err := os.Chown(s.folder, uid, gid); err != nil {
		tb.Fatal(err)
	}
	s.attribute = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	return s
}

func (s server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.SysProcAttr = s.folder, s.attribute
	return cmd
}

func (s server) run(name string, args ...string) {
	if output, err := s.command(name, args...).CombinedOutput(); err != nil {
		s.Fatalf("%s: %v\n%s", name, err, output)
	}
}

// start starts a server and waits until it answers.
func (s server) start(answers func() error, name string, args ...string) {
	cmd := s.command(name, args...)
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	s.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	for limit := time.After(time.Minute); answers() != nil; {
		select {
		case err := <-ended:
			ended <- err
			s.Fatal(name, "ended:", err)
		case <-limit:
			s.Fatal(name, "does not answer:", answers())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func open(tb testing.TB, driver, source string) *sql.DB {
	db := must(sql.Open(driver, source))
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

func sqlite(tb testing.TB) *sql.DB {
	return open(tb, "sqlite", "file:"+filepath.Join(tb.TempDir(), "work.db")+"?_pragma=busy_timeout(30000)")
}

func postgres(tb testing.TB) *sql.DB {
	initdb, s, port := program(tb, "/usr/lib/postgresql/*/bin/initdb"), newServer(tb, "postgres"), freePort()
	s.run(initdb, "-D", s.folder+"/data", "-U", "postgres", "-A", "trust", "--no-sync")
	db := open(tb, "pgx", "postgres://postgres@127.0.0.1:"+port+"/postgres?sslmode=disable")
	s.start(db.Ping, filepath.Join(filepath.Dir(initdb), "postgres"), "-D", s.folder+"/data", "-c", "port="+port,
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="+s.folder, "-c", "fsync=off")
	return db
}

func mariadb(tb testing.TB) *sql.DB {
	install, s, port := program(tb, "mariadb-install-db"), newServer(tb, "mysql"), freePort()
	data := []string{"--no-defaults", "--datadir=" + s.folder + "/data", "--tmpdir=" + s.folder}
	s.run(install, append(data, "--auth-root-authentication-method=normal", "--skip-test-db")...)
	db := open(tb, "mysql", "root@tcp(127.0.0.1:"+port+")/mysql")
	s.start(db.Ping, program(tb, "/usr/sbin/mariadbd", "mariadbd"),
		append(data, "--port="+port, "--bind-address=127.0.0.1", "--socket="+s.folder+"/s")...)
	return db
}

func startRedis(tb testing.TB) *redis.Client {
	port := freePort()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	tb.Cleanup(func() { _ = rdb.Close() })
	ping := func() error { return rdb.Ping(context.Background()).Err() }
	newServer(tb, "").start(ping, program(tb, "redis-server"), "--port", port, "--bind", "127.0.0.1", "--save", "")
	return rdb
}

// startS3 starts a store with the conditional writes of S3 and the bucket reports, whose ETag is that of the body alone.
func startS3(tb testing.TB, options ...func(*s3.Options)) *s3.Client {
	var mutex sync.Mutex
	objects := map[string][]byte{}
	etag := func(body []byte) string { return fmt.Sprintf(`"%x"`, md5.Sum(body)) }
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mutex.Lock()
		defer mutex.Unlock()
		body, exists := objects[r.URL.Path]
		match, none := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
		switch {
		case !strings.HasPrefix(r.URL.Path, "/reports/"):
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, "<Error><Code>NoSuchBucket</Code></Error>")
		case r.Method == http.MethodGet && !exists, match != "" && !exists:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, "<Error><Code>NoSuchKey</Code></Error>")
		case r.Method == http.MethodGet:
			w.Header().Set("ETag", etag(body))
			_, _ = w.Write(body)
		case none == "*" && exists, match != "" && match != etag(body):
			w.WriteHeader(http.StatusPreconditionFailed)
			fmt.Fprint(w, "<Error><Code>PreconditionFailed</Code></Error>")
		default:
			objects[r.URL.Path] = must(io.ReadAll(r.Body))
		}
	}))
	tb.Cleanup(store.Close)
	return s3.New(s3.Options{
		BaseEndpoint: &store.URL, Region: "us-east-1", UsePathStyle: true,
		Credentials:                credentials.NewStaticCredentialsProvider("a", "b", ""),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
	}, options...)
}
