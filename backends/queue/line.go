package queue

// line is the waiters in their order. Places are numbered as they come; those who
// leave leave a gap. A Fenwick tree counts who stands in front of whom. Where
// more than half are gaps, the places are numbered again.
type line[V any] struct {
	places []*Entry[V] // nil: a gap
	sums   []int       // the Fenwick tree: sums[i] counts places (i+1-lowbit(i+1)) to i
	head   int         // all places before it are gaps
	count  int
}

// slack is how many gaps are left alone.
const slack = 16

func (l *line[V]) add(e *Entry[V]) {
	e.place = len(l.places)
	l.places = append(l.places, e)
	l.count++
	// Its sum covers what the sums right below it do.
	n, sum := len(l.places), 1
	for i := n - 1; i > n-n&-n; i -= i & -i {
		sum += l.sums[i-1]
	}
	l.sums = append(l.sums, sum)
}

func (l *line[V]) remove(e *Entry[V]) {
	l.places[e.place] = nil
	for i := e.place + 1; i <= len(l.sums); i += i & -i {
		l.sums[i-1]--
	}
	l.count--
	if len(l.places) > 2*l.count+slack {
		l.renumber()
	}
}

// front is the first waiter, of a line that is not empty.
func (l *line[V]) front() *Entry[V] {
	for l.places[l.head] == nil {
		l.head++
	}
	return l.places[l.head]
}

func (l *line[V]) position(e *Entry[V]) int {
	n := 0
	for i := e.place + 1; i > 0; i -= i & -i {
		n += l.sums[i-1]
	}
	return n
}

func (l *line[V]) len() int {
	if l == nil {
		return 0
	}
	return l.count
}

func (l *line[V]) all(yield func(*Entry[V]) bool) {
	if l == nil {
		return
	}
	for _, e := range l.places[l.head:] {
		if e != nil && !yield(e) {
			return
		}
	}
}

func (l *line[V]) renumber() {
	old := *l
	*l = line[V]{places: make([]*Entry[V], 0, 2*old.count+slack), sums: make([]int, 0, 2*old.count+slack)}
	for e := range old.all {
		l.add(e)
	}
}
