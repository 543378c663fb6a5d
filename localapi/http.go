package localapi

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

// The HTTP side has the paths of the google.api.http annotations in the proto
// file (TestRoutesAreTheProtos compares them). net/http's own mux is not used
// for them: it would redirect names of resources such as "a//b" or "a/../b".

// route is one method and path.
type route struct {
	method string
	path   []string // segments; "{x}" takes one into field x, "{x=**}" takes the rest
	verb   string   // ":verb" behind the last segment
	serve  handler
}

// handler answers a request whose path was found.
type handler func(w http.ResponseWriter, r *http.Request, vars []pathVar)

// pathVar is a field in a path.
type pathVar struct{ name, value string }

func on(method, path string, serve handler) route {
	verb := ""
	if i := strings.LastIndexByte(path, ':'); i >= 0 {
		path, verb = path[:i], path[i+1:]
	}
	return route{method: method, path: strings.Split(path, "/")[1:], verb: verb, serve: serve}
}

func (s *Server) table(api *service) []route {
	return []route{
		on(http.MethodPost, "/v1/hold", streamed(s, 0, api.hold)),
		on(http.MethodPost, "/v1/sessions", s.openSession(api)),
		on(http.MethodPost, "/v1/sessions/{session_id}:keepAlive", unary(s, api.KeepAlive)), // before the path without a verb: see dispatch
		on(http.MethodDelete, "/v1/sessions/{session_id}", unary(s, api.CloseSession)),
		on(http.MethodPost, "/v1/sessions/{session_id}/locks", unary(s, api.Acquire)),
		on(http.MethodDelete, "/v1/sessions/{session_id}/requests/{request_id}", unary(s, api.Cancel)),
		on(http.MethodPost, "/v1/sessions/{session_id}/locks/{lock_id}:downgrade", unary(s, api.Downgrade)),
		on(http.MethodPost, "/v1/sessions/{session_id}/locks/{lock_id}:extend", unary(s, api.Extend)),
		on(http.MethodPost, "/v1/sessions/{session_id}/locks/{lock_id}:detach", unary(s, api.Detach)),
		on(http.MethodDelete, "/v1/sessions/{session_id}/locks/{lock_id}", unary(s, api.Release)),
		on(http.MethodGet, "/v1/sessions/{session_id}/events", s.events(api)),
		on(http.MethodGet, "/v1/locks/{resource=**}", unary(s, api.GetLock)),
		on(http.MethodGet, "/v1/locks", unary(s, api.ListLocks)),
		on(http.MethodGet, "/v1/watch", streamed(s, s.o.Limits.Stall, api.watch)),
		on(http.MethodGet, "/v1/leader/{resource=**}", unary(s, api.GetLeader)),
		on(http.MethodGet, "/v1/watch/leader/{resource=**}", streamed(s, s.o.Limits.Stall, api.watchLeader)),
		on(http.MethodDelete, "/v1/locks/{resource=**}", unary(s, api.ForceRelease)),
		on(http.MethodGet, "/v1/outcomes", unary(s, api.ListOutcomes)),
		on(http.MethodDelete, "/v1/outcomes/{resource=**}", unary(s, api.ResetOutcome)),
		on(http.MethodPost, "/v1/handles:extend", unary(s, api.ExtendHandle)),
		on(http.MethodPost, "/v1/handles:release", unary(s, api.ReleaseHandle)),
		on(http.MethodGet, "/v1/info", unary(s, api.GetInfo)),
	}
}

// routes is the whole HTTP side.
func (s *Server) routes(api *service) http.Handler {
	table := s.table(api)
	plain := http.NewServeMux()
	HealthRoutes(plain, Readiness{Now: s.o.Manager.Ready, Once: s.o.Manager.OnceReady}, s.metrics())
	plain.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentJSON)
		_, _ = w.Write(pb.OpenAPI)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := permit(r.Context())
		if err != nil {
			s.fail(w, r, err)
			return
		}
		s.places.enter(c)
		defer s.places.leave(c)
		path := r.URL.EscapedPath()
		if !strings.HasPrefix(path, "/") { // "*", or a URL without a path
			s.fail(w, r, refuse(reasonNoRoute, "%q is not a path; /openapi.json tells what there is", r.RequestURI))
			return
		}
		if !strings.HasPrefix(path, "/v1/") {
			if _, pattern := plain.Handler(r); pattern != "" {
				s.hurry(w)
				plain.ServeHTTP(w, r)
				return
			}
			get := *r
			get.Method = http.MethodGet
			if _, pattern := plain.Handler(&get); pattern != "" {
				s.failMethod(w, r, http.MethodGet, http.MethodHead)
				return
			}
		}
		s.dispatch(w, r, table, strings.Split(path, "/")[1:])
	})
}

// metrics are of all spaces, so only who sees all of them reads these here.
func (s *Server) metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sp, err := spaceOf(r.Context())
		if err == nil && !sp.Whole() {
			err = refuse(reasonPermission, "the metrics are of all spaces of names, and yours is %q; --http-addr serves them, too", sp.Name())
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		s.o.Metrics.ServeHTTP(w, r)
	})
}

func (s *Server) dispatch(w http.ResponseWriter, r *http.Request, table []route, path []string) {
	var others []string // methods that the path has
	for _, t := range table {
		vars, ok := t.match(path)
		if !ok {
			continue
		}
		if t.method == r.Method {
			t.serve(w, r, vars)
			return
		}
		others = append(others, t.method)
		if t.verb != "" { // no id of a session or a hold ends in a verb
			break
		}
	}
	if len(others) == 0 {
		s.fail(w, r, refuse(reasonNoRoute, "there is no %s; /openapi.json tells what there is", r.URL.Path))
		return
	}
	s.failMethod(w, r, others...)
}

// failMethod refuses a method that a path does not have, and names those that it has.
func (s *Server) failMethod(w http.ResponseWriter, r *http.Request, has ...string) {
	slices.Sort(has)
	w.Header().Set("Allow", strings.Join(has, ", "))
	is := "is"
	if len(has) > 1 {
		is = "are"
	}
	st := toStatus(refuse(reasonNoRoute, "%s is not possible on %s, but %s %s", r.Method, r.URL.Path, strings.Join(has, " and "), is))
	s.hurry(w)
	_, line := marshalStatus(st)
	writeJSON(w, http.StatusMethodNotAllowed, line)
}

// match finds the fields in a path, given as its segments, still escaped.
func (t route) match(path []string) (vars []pathVar, ok bool) {
	if t.verb != "" {
		last, found := strings.CutSuffix(path[len(path)-1], ":"+t.verb)
		if !found {
			return nil, false
		}
		path = append(slices.Clone(path[:len(path)-1]), last)
	}
	if !t.fits(path) {
		return nil, false
	}
	vars = make([]pathVar, 0, 2)
	for i, want := range t.path {
		name, isVar := strings.CutPrefix(want, "{")
		if !isVar {
			continue
		}
		name, value := strings.TrimSuffix(name, "}"), path[i]
		if rest, all := strings.CutSuffix(name, "=**"); all {
			name, value = rest, strings.Join(path[i:], "/")
		}
		value, err := url.PathUnescape(value)
		if err != nil {
			return nil, false
		}
		vars = append(vars, pathVar{name, value})
	}
	return vars, true
}

// fits tells whether a path is one of t, whatever its fields are.
func (t route) fits(path []string) bool {
	for i, want := range t.path {
		switch {
		case i == len(path):
			return false
		case strings.HasSuffix(want, "=**}"):
			return true
		case want[0] != '{' && want != path[i]:
			return false
		}
	}
	return len(path) == len(t.path)
}

// unary serves a call that has one answer.
func unary[Q any, A proto.Message, PQ interface {
	*Q
	proto.Message
}](s *Server, call func(context.Context, PQ) (A, error)) handler {
	return func(w http.ResponseWriter, r *http.Request, vars []pathVar) {
		q := PQ(new(Q))
		if err := s.read(w, r, q, vars); err != nil {
			s.fail(w, r, err)
			return
		}
		answer(s, w, r, call, q)
	}
}

func answer[Q, A proto.Message](s *Server, w http.ResponseWriter, r *http.Request, call func(context.Context, Q) (A, error), q Q) {
	a, err := call(r.Context(), q)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	body, err := marshalJSON(a)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.hurry(w)
	writeJSON(w, http.StatusOK, body)
}

// hurry bounds how long an answer may take to be read: until then it stays in memory.
func (s *Server) hurry(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.o.Limits.Stall)) // all of our connections have deadlines
}

// openSession answers at once for a session of its own, and with a stream for
// one that hangs on the request.
func (s *Server) openSession(api *service) handler {
	return func(w http.ResponseWriter, r *http.Request, vars []pathVar) {
		var q pb.OpenSessionRequest
		if err := s.read(w, r, &q, vars); err != nil {
			s.fail(w, r, err)
			return
		}
		if q.GetLiveness() == pb.Liveness_STREAM {
			s.serveStream(w, r, func(ctx context.Context, lines *lineWriter) error {
				return api.stream(ctx, &q, func(e *pb.Event) error { return lines.send(e) })
			})
			return
		}
		answer(s, w, r, api.OpenSession, &q)
	}
}

// events sends its head at once: news may come only much later.
func (s *Server) events(api *service) handler {
	return func(w http.ResponseWriter, r *http.Request, vars []pathVar) {
		var q pb.EventsRequest
		if err := s.read(w, r, &q, vars); err != nil {
			s.fail(w, r, err)
			return
		}
		s.serveStream(w, r, func(ctx context.Context, lines *lineWriter) error {
			return api.events(ctx, &q, lines.head, func(e *pb.Event) error { return lines.send(e) })
		})
	}
}

// fail writes an error.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	st := s.explain(r.Context(), r.Method+" "+r.URL.Path, err)
	s.hurry(w)
	writeStatus(w, st)
}

// tracked lets Run wait for the handlers. None begins once Run waits.
func (s *Server) tracked(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.entering.Lock()
		if s.stopping.Err() != nil {
			s.entering.Unlock()
			w.Header().Set("Connection", "close")
			st := s.explain(r.Context(), r.URL.Path, session.ErrDraining)
			writeStatus(w, st)
			return
		}
		s.running.Add(1)
		s.entering.Unlock()
		defer s.running.Done()
		h.ServeHTTP(w, r)
	})
}
