package ledger

import "time"

// due is a moment at which something is to be done: about a hold that has an end
// of its own or of its grace, or about a call that waits.
type due struct {
	at    time.Duration
	place int // among the dues, from 1; 0: not there
	hold  *Hold
	call  *Call
}

// dues are a heap by the moment.
type dues []*due

func (d dues) first() *due {
	if len(d) == 0 {
		return nil
	}
	return d[0]
}

// set puts x in its place for that moment.
func (d *dues) set(x *due, at time.Duration) {
	x.at = at
	if x.place == 0 {
		*d = append(*d, x)
		x.place = len(*d)
	}
	d.fix(x.place - 1)
}

func (d *dues) remove(x *due) {
	if x.place == 0 {
		return
	}
	i, last := x.place-1, len(*d)-1
	d.swap(i, last)
	(*d)[last] = nil
	*d = (*d)[:last]
	x.place = 0
	if i < last {
		d.fix(i)
	}
}

func (d dues) swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].place, d[j].place = i+1, j+1
}

// fix moves what is at i up or down to where it belongs.
func (d dues) fix(i int) {
	for i > 0 && d[i].at < d[(i-1)/2].at {
		d.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(d); child++ {
			if d[child].at < d[least].at {
				least = child
			}
		}
		if least == i {
			return
		}
		d.swap(i, least)
		i = least
	}
}
