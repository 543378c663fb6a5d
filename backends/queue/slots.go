package queue

import "container/heap"

// slots gives out the lowest number that is free.
type slots struct {
	used  int32 // the numbers from here on were never given
	freed int32Heap
}

func (s *slots) take() int32 {
	if len(s.freed) > 0 {
		return heap.Pop(&s.freed).(int32)
	}
	s.used++
	return s.used - 1
}

func (s *slots) free(n int32) {
	heap.Push(&s.freed, n)
	if len(s.freed) == int(s.used) { // nobody has one: forget the numbers
		*s = slots{}
	}
}

type int32Heap []int32

func (h int32Heap) Len() int           { return len(h) }
func (h int32Heap) Less(i, j int) bool { return h[i] < h[j] }
func (h int32Heap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *int32Heap) Push(x any)        { *h = append(*h, x.(int32)) }
func (h *int32Heap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
