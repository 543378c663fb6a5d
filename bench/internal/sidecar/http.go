package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
)

// HTTP are pairs over HTTP/JSON with one session for all callers and as many
// kept-alive connections as callers.
func (s *Sidecar) HTTP(name string) measure.Subject {
	return measure.Subject{Name: name, Server: s.PID(), Open: func(ctx context.Context, callers int) ([]measure.Pair, func() error, error) {
		c := httpClient(s.Socket, callers)
		var session struct {
			ID string `json:"sessionId"`
		}
		if err := call(ctx, c, http.MethodPost, "/v1/sessions", `{"liveness":"PROCESS"}`, &session); err != nil {
			return nil, nil, err
		}
		closeAll := func() error {
			defer c.CloseIdleConnections()
			return call(context.WithoutCancel(ctx), c, http.MethodDelete, "/v1/sessions/"+session.ID, "", nil)
		}
		locks := "/v1/sessions/" + session.ID + "/locks"
		var pairs []measure.Pair
		for i := range callers {
			body := fmt.Sprintf(`{"resource":%q}`, resource(name, i))
			pairs = append(pairs, func(ctx context.Context) error {
				var grant struct {
					LockID string `json:"lockId"`
				}
				if err := call(ctx, c, http.MethodPost, locks, body, &grant); err != nil {
					return err
				}
				return call(ctx, c, http.MethodDelete, locks+"/"+grant.LockID, "", nil)
			})
		}
		return pairs, closeAll, nil
	}}
}

// call makes one request and decodes the answer.
func call(ctx context.Context, c *http.Client, method, path, body string, answer any) error {
	text, err := roundTrip(ctx, c, method, path, strings.NewReader(body))
	if err != nil || answer == nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), answer); err != nil {
		return fmt.Errorf("decode the answer to %s %s: %w", method, path, err)
	}
	return nil
}

// resource is the name of a caller's own resource.
func resource(subject string, caller int) string {
	return fmt.Sprintf("bench/%s/%d", subject, caller)
}
