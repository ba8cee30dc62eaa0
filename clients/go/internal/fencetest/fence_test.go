package fencetest

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/redis/go-redis/v9"

	"github.com/fencepost/fencepost/clients/go/fence"
	"github.com/fencepost/fencepost/clients/go/fencepost"
	"github.com/fencepost/fencepost/clients/go/fenceposttest"
)

var background = context.Background()

type databaseTest func(t *testing.T, db *sql.DB, dialect fence.Dialect)

func TestInEachDatabase(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]struct {
		start   func(testing.TB) *sql.DB
		dialect fence.Dialect
	}{
		"sqlite": {sqlite, fence.SQLite}, "postgres": {postgres, fence.PostgreSQL}, "mariadb": {mariadb, fence.MySQL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := kind.start(t)
			for name, test := range map[string]databaseTest{
				"a paused holder that has read writes nothing after a newer one": aPausedHolderWritesNothing,
				"transactions of one lock run one after the other":               oneAfterTheOther,
				"work that fails or panics takes the raise back":                 aFailureTakesTheRaiseBack,
				"a transaction that its work ends is no success":                 anEndedTransactionIsNoSuccess,
				"names are compared byte for byte":                               namesAreComparedByteForByte,
				"a service answers 412 to a lower token and 428 to none":         aServiceAnswers,
			} {
				for _, statement := range []string{
					"DROP TABLE IF EXISTS fencing_tokens", "DROP TABLE IF EXISTS account", kind.dialect.Create,
					"CREATE TABLE account (total integer NOT NULL)", "INSERT INTO account VALUES (5)",
				} {
					must(db.Exec(statement))
				}
				t.Run(name, func(t *testing.T) { test(t, db, kind.dialect) })
			}
		})
	}
}

type queries interface {
	QueryRow(query string, args ...any) *sql.Row
}

func totalOf(db queries) (total int) {
	if err := db.QueryRow("SELECT total FROM account").Scan(&total); err != nil {
		panic(err)
	}
	return total
}

func set(tx *sql.Tx, total int) error {
	_, err := tx.Exec("UPDATE account SET total = " + strconv.Itoa(total))
	return err
}

func nothing(*sql.Tx) error { return nil }

func aPausedHolderWritesNothing(t *testing.T, db *sql.DB, dialect fence.Dialect) {
	read := 0
	older, newer := fence.Token("a", 33), fence.Token("a", 34)
	look := func(tx *sql.Tx) error { read = totalOf(tx); return nil }
	add := func(tx *sql.Tx) error { return set(tx, totalOf(tx)+1) }
	late := func(tx *sql.Tx) error { return set(tx, read+1) }
	for _, step := range []struct {
		holder fence.Holder
		work   func(*sql.Tx) error
		err    error
		total  int
	}{
		{older, look, nil, 5}, {newer, add, nil, 6}, {older, late, fence.ErrStaleToken, 6}, {newer, add, nil, 7},
	} {
		err := fence.Transaction(background, db, dialect, step.holder, step.work)
		if !errors.Is(err, step.err) || totalOf(db) != step.total {
			t.Fatal(err, totalOf(db), step)
		}
	}
}

func oneAfterTheOther(t *testing.T, db *sql.DB, dialect fence.Dialect) {
	var order []string
	ended := make(chan error, 1)
	err := fence.Transaction(background, db, dialect, fence.Token("a", 33), func(tx *sql.Tx) error {
		go func() {
			ended <- fence.Transaction(background, db, dialect, fence.Token("a", 34), func(tx *sql.Tx) error {
				order = append(order, "newer")
				return set(tx, totalOf(tx)*10)
			})
		}()
		select {
		case err := <-ended:
			t.Error("it did not wait:", err)
		case <-time.After(300 * time.Millisecond):
		}
		order = append(order, "older")
		return set(tx, 2)
	})
	if err := errors.Join(err, <-ended); err != nil || totalOf(db) != 20 || !slices.Equal(order, []string{"older", "newer"}) {
		t.Fatal(err, totalOf(db), order)
	}
}

func aFailureTakesTheRaiseBack(t *testing.T, db *sql.DB, dialect fence.Dialect) {
	failure := errors.New("failure")
	err := fence.Transaction(background, db, dialect, fence.Token("a", 51), func(*sql.Tx) error { return failure })
	if err != failure {
		t.Fatal(err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = fence.Transaction(background, db, dialect, fence.Token("a", 50), func(*sql.Tx) error { panic(failure) })
	}()
	if err := fence.Transaction(background, db, dialect, fence.Token("a", 49), nothing); err != nil {
		t.Fatal(err)
	}
}

func anEndedTransactionIsNoSuccess(t *testing.T, db *sql.DB, dialect fence.Dialect) {
	err := fence.Transaction(background, db, dialect, fence.Token("a", 33), func(tx *sql.Tx) error {
		_, err := tx.Exec("ROLLBACK")
		if dialect.Highest != "" { // In MariaDB, which rolls back after a deadlock, what follows is not committed either.
			err = errors.Join(err, set(tx, 100))
		}
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "has failed or ended before its commit") || totalOf(db) != 5 {
		t.Fatal(err, totalOf(db))
	}
}

func TestAfterADeadlockThatTheWorkHidesNothingIsCommitted(t *testing.T) {
	t.Parallel()
	db := mariadb(t)
	for _, statement := range []string{
		fence.MySQL.Create, "CREATE TABLE account (total integer)", "INSERT INTO account VALUES (5)",
	} {
		must(db.Exec(statement))
	}
	// MariaDB rolls the lighter of two transactions back.
	heavier := must(db.Begin())
	must(heavier.Exec("INSERT INTO account SELECT 5 FROM seq_1_to_100"))
	must(heavier.Exec("UPDATE account SET total = 5"))
	ended := make(chan error, 1)
	err := fence.Transaction(background, db, fence.MySQL, fence.Token("a", 33), func(tx *sql.Tx) error {
		go func() {
			rows, err := heavier.Query(fence.MySQL.Highest, "a")
			ended <- errors.Join(err, rows.Close(), heavier.Rollback())
		}()
		if err := set(tx, 6); err == nil || !strings.Contains(err.Error(), "Deadlock found") {
			t.Error("no deadlock:", err)
		}
		return set(tx, 100)
	})
	if failed := <-ended; failed != nil || err == nil || !strings.Contains(err.Error(), "before its commit") || totalOf(db) != 5 {
		t.Fatal(failed, err, totalOf(db))
	}
}

func TestAConnectionOfMySQLCommitsEachStatementAgainOrIsClosed(t *testing.T) {
	t.Parallel()
	db := mariadb(t)
	db.SetMaxOpenConns(1)
	for _, statement := range []string{fence.MySQL.Create, "CREATE TABLE account (total integer)", "INSERT INTO account VALUES (5)"} {
		must(db.Exec(statement))
	}
	for number, work := range []func(*sql.Tx, context.CancelFunc) error{
		func(tx *sql.Tx, _ context.CancelFunc) error { return set(tx, 6) },
		func(tx *sql.Tx, _ context.CancelFunc) error { return errors.Join(set(tx, 7), io.ErrUnexpectedEOF) },
		func(tx *sql.Tx, cancel context.CancelFunc) error { defer cancel(); return set(tx, 8) },
	} {
		ctx, cancel := context.WithCancel(background)
		err := fence.Transaction(ctx, db, fence.MySQL, fence.Token("a", 33), func(tx *sql.Tx) error { return work(tx, cancel) })
		var commits bool
		if failed := db.QueryRow("SELECT @@autocommit").Scan(&commits); failed != nil || !commits {
			t.Fatal(number, failed, commits)
		}
		if total := totalOf(db); total != 6 || (err == nil) != (number == 0) {
			t.Fatal(number, total, err)
		}
		cancel()
	}
}

func namesAreComparedByteForByte(t *testing.T, db *sql.DB, dialect fence.Dialect) {
	for number, name := range []string{"a", "A", "a ", "a\u00e9", strings.Repeat("x", 512)} {
		if err := fence.Transaction(background, db, dialect, fence.Token(name, uint64(100-number)), nothing); err != nil {
			t.Fatal(name, err)
		}
	}
}

func TestAHeldLockNamesItsTokenAndALostOneRaisesNothing(t *testing.T) {
	t.Parallel()
	client, db := fenceposttest.Start(t).Client(t), sqlite(t)
	must(db.Exec(fence.SQLite.Create))
	lock := must(client.Acquire(background, "a"))
	header := http.Header{}
	err := errors.Join(fence.Transaction(background, db, fence.SQLite, lock, nothing), fence.SetHeader(header, lock))
	if err != nil || header.Get("X-Fencing-Token") != strconv.FormatUint(lock.Token(), 10) {
		t.Fatal(err, header)
	}
	if err := lock.Release(background); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{fence.Transaction(background, db, fence.SQLite, lock, nothing), fence.SetHeader(header, lock)} {
		if !errors.Is(err, fencepost.ErrLeaseLost) {
			t.Fatal(err)
		}
	}
}

func TestWhatIsNoTokenIsRefused(t *testing.T) {
	t.Parallel()
	db := sqlite(t)
	must(db.Exec(fence.SQLite.Create))
	for _, token := range []uint64{0, 1 << 53, 1 << 63} {
		err := fence.Transaction(background, db, fence.SQLite, fence.Token("a", token), nothing)
		if !errors.Is(err, fence.ErrInvalidToken) {
			t.Fatal(token, err)
		}
	}
}

func guardOf(rdb *redis.Client) fence.Redis {
	return fence.Redis{Eval: func(ctx context.Context, script string, keys []string, args ...any) (any, error) {
		return rdb.Eval(ctx, script, keys, args...).Result()
	}}
}

func TestRedisRefusesAPausedHolderAndRunsNoneOfItsCommands(t *testing.T) {
	t.Parallel()
	rdb := startRedis(t)
	guard, older, newer := guardOf(rdb), fence.Token("a", 33), fence.Token("a", 34)
	if err := guard.Raise(background, older); err != nil {
		t.Fatal(err)
	}
	answers, err := guard.Run(background, newer, fence.Command{"SET", "total", 1}, fence.Command{"INCRBY", "total", 2})
	if err != nil || !slices.Equal(answers, []any{"OK", int64(3)}) {
		t.Fatal(answers, err)
	}
	_, err = guard.Run(background, older, fence.Command{"SET", "total", 0})
	if total := rdb.Get(background, "total").Val(); !errors.Is(err, fence.ErrStaleToken) || total != "3" {
		t.Fatal(err, total)
	}
	// A client may put a prefix before the keys, and there alone.
	prefixing := fence.Redis{Eval: func(ctx context.Context, script string, keys []string, args ...any) (any, error) {
		for number := range keys {
			keys[number] = "app:" + keys[number]
		}
		return guard.Eval(ctx, script, keys, args...)
	}}
	answers, err = prefixing.Run(background, older, fence.Command{"INCR", []byte("total")}, fence.Command{"PING"},
		fence.Command{"INCRBY", "total", 2})
	if err != nil || !slices.Equal(answers, []any{int64(1), "PONG", int64(3)}) || rdb.Get(background, "app:total").Val() != "3" {
		t.Fatal(answers, err)
	}
	if err := guard.Raise(background, fence.Token("a", 1<<53-1)); err != nil {
		t.Fatal(err)
	}
	if err := guard.Raise(background, fence.Token("a", 1<<53-2)); !errors.Is(err, fence.ErrStaleToken) {
		t.Fatal(err)
	}
}

func TestAnObjectRefusesAPausedHolderAlsoWithTheBytesThatWereThere(t *testing.T) {
	t.Parallel()
	report := daily(startS3(t))
	older, newer := fence.Token("a", 33), fence.Token("a", 34)
	if data, err := report.Read(background, older); data != nil || err != nil {
		t.Fatal(data, err)
	}
	if err := report.Write(background, older, []byte("first\n\x00")); err != nil {
		t.Fatal(err)
	}
	// One that is paused between its look and its write finds what the newer one has put there, though the data is the same.
	paused := report
	paused.Put = func(ctx context.Context, body []byte, etag string) (bool, error) {
		if data, err := report.Read(ctx, newer); err != nil || string(data) != "first\n\x00" {
			t.Error(string(data), err)
		}
		return report.Put(ctx, body, etag)
	}
	if err := paused.Write(background, older, []byte("late")); !errors.Is(err, fence.ErrStaleToken) {
		t.Fatal(err)
	}
	if _, err := report.Read(background, older); !errors.Is(err, fence.ErrStaleToken) {
		t.Fatal(err)
	}
	if err := report.Write(background, newer, nil); err != nil {
		t.Fatal(err)
	}
	if data, err := report.Read(background, fence.Token("a", 35)); data == nil || len(data) > 0 || err != nil {
		t.Fatal(data, err)
	}
	for _, body := range []string{"no token", "fencing-token: 0\n1\n", "fencing-token: x\n1\n"} {
		if done, err := report.Put(background, []byte(body), etagOf(report)); !done || err != nil {
			t.Fatal(done, err)
		}
		_, err := report.Read(background, newer)
		if err == nil || !strings.Contains(err.Error(), "does not begin with a token") || errors.Is(err, fence.ErrInvalidToken) {
			t.Fatal(err)
		}
	}
}

func TestABucketThatIsMissingAndAnObjectWithoutETagAreErrors(t *testing.T) {
	t.Parallel()
	elsewhere := startS3(t, func(options *s3.Options) { *options.BaseEndpoint += "/missing" })
	body := []byte("fencing-token: 1\n1\n")
	odd := func(etag string) fence.Object {
		return fence.Object{
			Get: func(context.Context) ([]byte, string, error) { return body, etag, nil },
			Put: func(context.Context, []byte, string) (bool, error) { return false, nil },
		}
	}
	for part, object := range map[string]fence.Object{
		"NoSuchBucket": daily(elsewhere), "without an ETag": odd(""), "100 attempts": odd("other"),
	} {
		_, err := object.Read(background, fence.Token("a", 33))
		if err := errors.Join(err, object.Write(background, fence.Token("a", 33), nil)); strings.Count(err.Error(), part) != 2 {
			t.Error(part, err)
		}
	}
}

func etagOf(object fence.Object) string {
	_, etag, err := object.Get(background)
	return must(etag, err)
}

func TestAFileRefusesAPausedHolderAndLetsOneInAtATime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "report")
	write := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o666) }
	}
	if err := fence.File(path, fence.Token("a", 33), write("5")); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	err := fence.File(path, fence.Token("a", 33), func(string) error {
		go func() { ended <- fence.File(path, fence.Token("a", 34), write("6")) }()
		select {
		case err := <-ended:
			t.Error("it did not wait:", err)
		case <-time.After(300 * time.Millisecond):
		}
		return write("5.5")(path)
	})
	if err := errors.Join(err, <-ended); err != nil {
		t.Fatal(err)
	}
	err = fence.File(path, fence.Token("a", 33), write("late"))
	if text := string(must(os.ReadFile(path))); !errors.Is(err, fence.ErrStaleToken) || text != "6" {
		t.Fatal(err, text)
	}
	// A shell script leaves the end of a line behind the token.
	if err := os.WriteFile(path+".token", []byte("35\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := fence.File(path, fence.Token("a", 35), write("7")); err != nil {
		t.Fatal(err)
	}
	// Not the token that was given is wrong.
	if err := os.WriteFile(path+".token", []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	err = fence.File(path, fence.Token("a", 35), write("8"))
	if err == nil || errors.Is(err, fence.ErrInvalidToken) || !strings.Contains(err.Error(), "report.token has no token") {
		t.Fatal(err)
	}
}

func aServiceAnswers(t *testing.T, db *sql.DB, dialect fence.Dialect) {
	service := httptest.NewServer(fence.Handler(func(w http.ResponseWriter, r *http.Request, token uint64) error {
		add := func(tx *sql.Tx) error { return set(tx, totalOf(tx)+1) }
		if r.URL.Path == "/fails" {
			add = func(*sql.Tx) error { return fence.ErrInvalidToken } // Of another lock, which the server was to use.
		}
		return fence.Transaction(r.Context(), db, dialect, fence.Token("a", token), add)
	}))
	defer service.Close()
	for _, call := range []struct {
		path   string
		tokens []string
		status int
	}{
		{"/", nil, 428}, {"/", []string{"34"}, 200}, {"/", []string{"33"}, 412}, {"/", []string{"34"}, 200},
		{"/fails", []string{"35"}, 500}, {"/", []string{"34"}, 200}, {"/", []string{"35", "34"}, 400},
		{"/", []string{"34", "34"}, 400}, {"/", []string{"34, 34"}, 400},
		{"/", []string{""}, 400}, {"/", []string{"0"}, 400}, {"/", []string{"-1"}, 400}, {"/", []string{"3 4"}, 400},
		{"/", []string{"+3"}, 400}, {"/", []string{"1_0"}, 400}, {"/", []string{"\u00b2"}, 400}, {"/", []string{"x"}, 400},
		{"/", []string{"9007199254740992"}, 400}, {"/", []string{"00000000000000034"}, 400},
	} {
		request := must(http.NewRequest(http.MethodPut, service.URL+call.path, nil))
		request.Header["X-Fencing-Token"] = call.tokens
		response := must(http.DefaultClient.Do(request))
		_ = response.Body.Close()
		if response.StatusCode != call.status {
			t.Error(call, response.StatusCode)
		}
	}
	if total := totalOf(db); total != 8 {
		t.Error("the total is", total)
	}
}
