package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	all := []string{"pairs", "hot", "contenders", "kill", "lead", "idle", "sessions", "scale"}
	for _, c := range []struct {
		name   string
		args   string
		only   []string
		stores []string
		err    string // part of it; empty: none
	}{
		{name: "nothing", only: all, stores: []string{"embedded", "redis", "zookeeper", "mysql", "postgres", "etcd"}},
		{name: "some", args: "--only kill,hot --stores mariadb", only: []string{"kill", "hot"}, stores: []string{"mariadb"}},
		{name: "no such part", args: "--only pair", err: `no part "pair": give some of pairs, hot, contenders`},
		{name: "no such store", args: "--stores redis,consul", err: `no store "consul": give some of embedded, redis, zookeeper`},
		{name: "a word too many", args: "quick", err: `unexpected argument "quick"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, err := parse(strings.Fields(c.args))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("parse: %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([][]string{c.only, c.stores}, [][]string{o.only, o.stores}); diff != "" {
				t.Errorf("parts and stores (-want +got):\n%s", diff)
			}
		})
	}
}
