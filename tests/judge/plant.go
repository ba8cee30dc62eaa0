package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Plant stands before a server, and breaks a promise once for each lock.
type Plant struct {
	*httptest.Server
	to      string
	promise Promise

	mutex sync.Mutex
	// names are the locks of the leases.
	names map[string]string
	// tokens are those of each lock's grants, in order.
	tokens map[string][]int64
	broken map[string]bool
}

// A Promise is broken by a change of one answer.
type Promise struct {
	Name string
	// Method is the one whose answer is changed.
	Method string
	// Always says that nothing explains it.
	Always bool
	// TTL of the leases.
	TTL time.Duration
	// Waiting is as in Work.
	Waiting int
	// Before says that the call is not passed on.
	Before bool
	// Break is the answer in place of this one, nil if there is none.
	Break func(lock string, tokens []int64, reason string, answer Fields) Fields
}

// planted is the lease of a grant that the server knows nothing of.
const planted = "planted"

// Promises are those that a Plant can break.
var Promises = []Promise{
	{Name: "a lock is granted twice", Method: "Acquire", TTL: time.Second, Waiting: 2,
		Break: func(_ string, tokens []int64, reason string, _ Fields) Fields {
			if reason != "LOCK_HELD" && reason != "WAIT_TIMEOUT" || len(tokens) == 0 {
				return nil
			}
			token := strconv.FormatInt(tokens[len(tokens)-1]+1, 10)
			return Fields{"lease": Fields{"leaseId": planted, "fencingToken": token, "ttl": "1s", "waited": "0s"}}
		}},
	{Name: "a grant has an old token", Method: "Acquire", Always: true, TTL: time.Second, Waiting: 2,
		Break: func(_ string, tokens []int64, reason string, answer Fields) Fields {
			if reason != "" || len(tokens) < 2 {
				return nil
			}
			lease := answer["lease"].(map[string]any)
			lease["fencingToken"] = strconv.FormatInt(tokens[len(tokens)-2], 10)
			return answer
		}},
	{Name: "an expired lease is revived", Method: "Renew", TTL: 500 * time.Millisecond, Waiting: 2,
		Break: func(_ string, _ []int64, reason string, _ Fields) Fields {
			if reason != "LEASE_LOST" {
				return nil
			}
			return Fields{"lease": Fields{"ttl": "1s", "waited": "0s", "fencingToken": "1"}}
		}},
	{Name: "a release is lost", Method: "Release", Before: true, TTL: 8 * time.Second,
		Break: func(string, []int64, string, Fields) Fields { return Fields{} }},
}

// NewPlant stands before the server of this address.
func NewPlant(to string, promise Promise) *Plant {
	plant := &Plant{to: to, promise: promise, names: map[string]string{}, tokens: map[string][]int64{},
		broken: map[string]bool{}}
	plant.Server = httptest.NewServer(plant)
	return plant
}

// Address is where clients find it.
func (p *Plant) Address() string { return strings.TrimPrefix(p.URL, "http://") }

// Broken are the locks of which it has broken the promise.
func (p *Plant) Broken() map[string]bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return maps.Clone(p.broken)
}

func (p *Plant) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	var fields struct{ Name, LeaseID string }
	if err != nil || json.Unmarshal(body, &fields) != nil {
		http.Error(writer, "", http.StatusBadGateway)
		return
	}
	method := request.URL.Path[strings.LastIndex(request.URL.Path, "/")+1:]
	lock := p.lock(fields.Name, fields.LeaseID)
	if fields.LeaseID == planted {
		writer.Header().Set("Fencepost-Reason", "LEASE_LOST")
		writer.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(writer, "{}")
		return
	}
	if method == p.promise.Method && p.promise.Before {
		if other := p.change(lock, "", nil); other != nil {
			_ = json.NewEncoder(writer).Encode(other)
			return
		}
	}
	onward, err := http.NewRequestWithContext(request.Context(), http.MethodPost, "http://"+p.to+request.URL.Path,
		bytes.NewReader(body))
	if err != nil {
		http.Error(writer, "", http.StatusBadGateway)
		return
	}
	onward.Header = request.Header.Clone()
	response, err := client.Do(onward)
	if err != nil {
		http.Error(writer, "", http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	var answer Fields
	text, err := io.ReadAll(response.Body)
	if err != nil || json.Unmarshal(text, &answer) != nil {
		http.Error(writer, "", http.StatusBadGateway)
		return
	}
	p.note(lock, method, answer)
	reason := response.Header.Get("Fencepost-Reason")
	if method == p.promise.Method {
		if other := p.change(lock, reason, answer); other != nil {
			_ = json.NewEncoder(writer).Encode(other)
			return
		}
	}
	writer.Header().Set("Fencepost-Reason", reason)
	writer.WriteHeader(response.StatusCode)
	_, _ = writer.Write(text)
}

func (p *Plant) lock(name, lease string) string {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if name == "" {
		return p.names[lease]
	}
	return name
}

// note remembers a grant.
func (p *Plant) note(lock, method string, answer Fields) {
	lease, granted := answer["lease"].(map[string]any)
	if !granted || method != "Acquire" {
		return
	}
	token, _ := strconv.ParseInt(lease["fencingToken"].(string), 10, 64)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.names[lease["leaseId"].(string)] = lock
	p.tokens[lock] = append(p.tokens[lock], token)
}

// change is the answer that breaks the promise, at a random one of the chances that a lock has.
func (p *Plant) change(lock, reason string, answer Fields) Fields {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.broken[lock] || rand.Intn(3) > 0 {
		return nil
	}
	other := p.promise.Break(lock, p.tokens[lock], reason, answer)
	if other != nil {
		p.broken[lock] = true
	}
	return other
}
