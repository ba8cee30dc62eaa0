package fencetest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/redis/go-redis/v9"

	"github.com/fencepost/fencepost/clients/go/fence"
	"github.com/fencepost/fencepost/clients/go/fencepost"
	"github.com/fencepost/fencepost/clients/go/fenceposttest"
)

// The programs of docs/protect-a-resource.md, which must have the lines of each function's body.

func pageTransaction(ctx context.Context, client *fencepost.Client, db *sql.DB) error {
	err := client.Do(ctx, "accounts", func(ctx context.Context, lock *fencepost.Lock) error {
		return fence.Transaction(ctx, db, fence.PostgreSQL, lock, func(tx *sql.Tx) error { // Commits with the function.
			var total int
			if err := tx.QueryRowContext(ctx, "SELECT total FROM account").Scan(&total); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, "UPDATE account SET total = $1", total+1)
			return err
		})
	}, fencepost.Wait(30*time.Second))
	return err
}

func pageService(db *sql.DB) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("PUT /account", fence.Handler(func(w http.ResponseWriter, r *http.Request, token uint64) error {
		return fence.Transaction(r.Context(), db, fence.PostgreSQL, fence.Token("accounts", token), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(r.Context(), "UPDATE account SET total = 0")
			return err
		})
	}))
	return mux
}

func pageRedis(ctx context.Context, lock *fencepost.Lock, rdb *redis.Client) error {
	guard := fence.Redis{Eval: func(ctx context.Context, script string, keys []string, args ...any) (any, error) {
		return rdb.Eval(ctx, script, keys, args...).Result()
	}}
	err := guard.Raise(ctx, lock) // Before the first read.
	if err != nil {
		return err
	}
	total, err := rdb.Get(ctx, "total").Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	_, err = guard.Run(ctx, lock, fence.Command{"SET", "total", total + 1})
	return err
}

func pageFile(lock *fencepost.Lock) error {
	err := fence.File("report", lock, func(path string) error {
		return os.WriteFile(path, []byte("the report of today"), 0o666)
	})
	return err
}

func daily(client *s3.Client) fence.Object {
	refused := func(err error, codes ...string) bool {
		var answer smithy.APIError
		return errors.As(err, &answer) && slices.Contains(codes, answer.ErrorCode())
	}
	bucket, key := aws.String("reports"), aws.String("daily")
	report := fence.Object{
		Get: func(ctx context.Context) ([]byte, string, error) {
			object, err := client.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: key})
			if refused(err, "NoSuchKey") {
				return nil, "", nil
			} else if err != nil {
				return nil, "", err // Such as NoSuchBucket.
			}
			defer object.Body.Close()
			body, err := io.ReadAll(object.Body)
			return body, aws.ToString(object.ETag), err
		},
		Put: func(ctx context.Context, body []byte, etag string) (bool, error) {
			put := &s3.PutObjectInput{Bucket: bucket, Key: key, Body: bytes.NewReader(body)}
			if etag == "" {
				put.IfNoneMatch = aws.String("*")
			} else {
				put.IfMatch = &etag
			}
			_, err := client.PutObject(ctx, put)
			if refused(err, "PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey") {
				return false, nil // Another write came between.
			}
			return err == nil, err
		},
	}
	return report
}

func pageObject(ctx context.Context, lock *fencepost.Lock, report fence.Object) error {
	old, err := report.Read(ctx, lock) // Raises the token; nil if there is no object.
	if err != nil {
		return err
	}
	err = report.Write(ctx, lock, append(old, "another line\n"...))
	return err
}

func TestTheProgramsOfThePageAreThoseOfThisFile(t *testing.T) {
	t.Parallel()
	own, page := string(must(os.ReadFile("page_test.go"))), string(must(os.ReadFile("../../../../docs/protect-a-resource.md")))
	blocks := strings.Split(page, "```go\n")[1:]
	if len(blocks) != 6 {
		t.Fatal("the page has", len(blocks), "programs of Go")
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		indented := strings.TrimSuffix(strings.ReplaceAll("\n"+block, "\n", "\n\t"), "\t")
		if !strings.Contains(own, strings.ReplaceAll(indented, "\n\t\n", "\n\n")) {
			t.Error("the page has other lines:", indented)
		}
	}
	words := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	for _, dialect := range []fence.Dialect{fence.PostgreSQL, fence.SQLite, fence.MySQL} {
		table := strings.NewReplacer("IF NOT EXISTS ", "", "( ", "(", " )", ")").Replace(words(dialect.Create))
		raise := strings.NewReplacer("?, ?", ":name, :token", "$1, $2", ":name, :token").Replace(dialect.Raise)
		highest := strings.ReplaceAll(dialect.Highest, "?", ":name")
		for _, statement := range []string{table, raise, highest} {
			if !strings.Contains(words(page), words(statement)) {
				t.Error("the page has another statement:", statement)
			}
		}
	}
}

func TestTheProgramsOfThePageWork(t *testing.T) {
	client, ctx := fenceposttest.Start(t).Client(t), t.Context()
	db, rdb, report := postgres(t), startRedis(t), daily(startS3(t))
	t.Chdir(t.TempDir())
	must(db.Exec(fence.PostgreSQL.Create + "; CREATE TABLE account (total integer NOT NULL); INSERT INTO account VALUES (5)"))
	for range 2 {
		err := pageTransaction(ctx, client, db)
		lock := must(client.Acquire(ctx, "report"))
		err = errors.Join(err, pageRedis(ctx, lock, rdb), pageObject(ctx, lock, report), pageFile(lock), lock.Release(ctx))
		if err != nil {
			t.Fatal(err)
		}
	}
	text := string(must(os.ReadFile(filepath.Join(".", "report"))))
	data := string(must(report.Read(ctx, fence.Token("report", 1<<53-1))))
	if total := rdb.Get(ctx, "total").Val(); totalOf(db) != 7 || total != "2" || text != "the report of today" ||
		data != "another line\nanother line\n" {
		t.Fatal(totalOf(db), total, text, data)
	}
	must(db.Exec("UPDATE fencing_tokens SET token = 33"))
	service := pageService(db)
	for token, status := range map[string]int{"32": 412, "34": 200} {
		request := httptest.NewRequest(http.MethodPut, "/account", nil)
		request.Header.Set(fence.Header, token)
		answer := httptest.NewRecorder()
		if service.ServeHTTP(answer, request); answer.Code != status {
			t.Error(token, answer.Code)
		}
	}
	if total := totalOf(db); total != 0 {
		t.Error("the total is", total)
	}
}
