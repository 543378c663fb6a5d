package queue

import "container/heap"

// permits are the numbers of a resource with so many permits. The lowest that is
// free is given out.
type permits struct {
	room  Room
	count int // holds and waiters that have or want one
	used  int // the numbers from here on were never given
	freed numbers
}

func (p *permits) take() int {
	if len(p.freed) > 0 {
		return heap.Pop(&p.freed).(int)
	}
	p.used++
	return p.used - 1
}

func (p *permits) free(n int) { heap.Push(&p.freed, n) }

// numbers is a heap with the lowest on top.
type numbers []int

func (h numbers) Len() int           { return len(h) }
func (h numbers) Less(i, j int) bool { return h[i] < h[j] }
func (h numbers) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *numbers) Push(x any) { *h = append(*h, x.(int)) }

// Pop implements heap.Interface.
func (h *numbers) Pop() any {
	last := len(*h) - 1
	n := (*h)[last]
	*h = (*h)[:last]
	return n
}
