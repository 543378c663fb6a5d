package sidecar

import "testing"

const metrics = `# HELP locksidecar_heartbeats_total Heartbeats.
locksidecar_heartbeats_total{result="failed"} 1
locksidecar_heartbeats_total{result="ok"} 41
go_memstats_heap_alloc_bytes 1.5e+06
`

func TestSum(t *testing.T) {
	if got, err := sum(metrics, "locksidecar_heartbeats_total{"); got != 42 || err != nil {
		t.Errorf("sum = %v, %v", got, err)
	}
	if got, err := sum(metrics, "locksidecar_nothing{"); got != 0 || err != nil {
		t.Errorf("sum of nothing = %v, %v", got, err)
	}
	if _, err := sum("x{} many\n", "x{"); err == nil {
		t.Error("sum of a word is no error")
	}
}

func TestField(t *testing.T) {
	if got, err := field(metrics, "go_memstats_heap_alloc_bytes"); got != 1.5e6 || err != nil {
		t.Errorf("field = %v, %v", got, err)
	}
	if _, err := field(metrics, "go_memstats"); err == nil {
		t.Error("a part of a name is found")
	}
}
