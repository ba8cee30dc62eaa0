package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// How long a call waits for its answer, and its connection.
const patience = 3 * time.Second

// Answer is what the calls of a LockService say in JSON, as far as it is judged.
type Answer struct {
	Lease struct {
		ID     string   `json:"leaseId"`
		Token  int64    `json:"fencingToken,string"`
		TTL    Duration `json:"ttl"`
		Waited Duration `json:"waited"`
	} `json:"lease"`
	Lock struct {
		Holders []struct {
			Token int64 `json:"fencingToken,string"`
		} `json:"holders"`
	} `json:"lock"`
	Held bool `json:"held"`
}

// Duration is a google.protobuf.Duration.
type Duration time.Duration

// UnmarshalJSON reads such as "1.5s".
func (d *Duration) UnmarshalJSON(text []byte) error {
	seconds, err := strconv.ParseFloat(strings.Trim(string(text), `"s`), 64)
	*d = Duration(seconds * float64(time.Second))
	return err
}

// MarshalJSON writes it so.
func (d Duration) MarshalJSON() ([]byte, error) {
	return json.Marshal(strconv.FormatFloat(time.Duration(d).Seconds(), 'f', -1, 64) + "s")
}

// Fields are those of a request.
type Fields map[string]any

// Reason is why a call failed: "" if it did not.
type Reason string

// What the judge needs to know of a failed call beside the reasons that the server sends.
const (
	Refused    Reason = "refused"    // Nobody listened: it had no effect.
	Unanswered Reason = "unanswered" // It may have had one.
)

var client = http.Client{
	Timeout:   patience + time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 16},
}

// call calls a method over HTTP/1.1 and JSON, as the Connect protocol has it.
func call(server, method string, fields Fields) (answer Answer, reason Reason) {
	body, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	request, err := http.NewRequest(http.MethodPost, "http://"+server+"/fencepost.v1."+method, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Connect-Protocol-Version", "1")
	request.Header.Set("Connect-Timeout-Ms", strconv.FormatInt(patience.Milliseconds(), 10))
	response, err := client.Do(request)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return answer, Refused
	}
	if err != nil {
		return answer, Unanswered
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || json.Unmarshal(text, &answer) != nil {
		return answer, Unanswered
	}
	if response.StatusCode == http.StatusOK {
		return answer, ""
	}
	if reason := response.Header.Get("Fencepost-Reason"); reason != "" {
		return answer, Reason(reason)
	}
	return answer, Unanswered
}
