//go:build unix

package fence

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// File raises the token beside a file, and keeps other holders of this machine out until work returns.
//
// The token is in path.token, and path.lock is locked by flock meanwhile: all processes must see one file system that has
// it. Delete neither of them. Give the file its content at once, by a rename, if the process may end in work. Returns [ErrStaleToken], and the
// error of work unchanged.
func File(path string, lock Holder, work func(path string) error) error {
	token, err := check(lock)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer file.Close()
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return err
	}
	highest, err := readToken(path + ".token")
	if err != nil {
		return err
	}
	if err := refuse(lock, token, highest); err != nil {
		return err
	}
	if highest < token {
		if err := replace(path+".token", strconv.FormatUint(token, 10)); err != nil {
			return err
		}
	}
	return work(path)
}

func readToken(path string) (uint64, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return parseKept(strings.TrimSpace(string(text)), path+" has no token")
}

// replace is durable: a crash leaves the old content or the new one.
func replace(path, text string) error {
	file, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
