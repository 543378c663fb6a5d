package ledger

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// The latest names are known, whatever is put in again and when.
func TestMemory(t *testing.T) {
	m := memory[int]{size: 5}
	var model []string // the latest last
	for n := range 2000 {
		name := fmt.Sprint(rand.N(12))
		m.put(name, n)
		model = append(slices.DeleteFunc(model, func(s string) bool { return s == name }), name)
		if len(model) > m.size {
			model = model[1:]
		}
		for i := range 12 {
			name := fmt.Sprint(i)
			if _, known := m.get(name); known != slices.Contains(model, name) {
				t.Fatalf("step %d: %s is known: %t; the latest are %v", n, name, known, model)
			}
		}
		if v, _ := m.get(name); v != n {
			t.Fatalf("step %d: %s is %d", n, name, v)
		}
	}
}
