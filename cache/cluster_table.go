package cache

// placeKey names one pair of an owner and a partner: a volume that a node has, or a pod that wants that.
type placeKey[O, P comparable] struct {
	owner   O
	partner P
}

// table holds one row for each pair of an owner, which keeps the roster of its places, and a partner. It is what pairs are on
// a node, for owners that have many partners. A row is found by both, by its owner and by its partner, each in the time that
// the answer takes. A row never changes: a new one takes its place. Whoever uses a table holds the lock of its state, but for
// going through all.
type table[O, P comparable, R any] struct {
	byKey     map[placeKey[O, P]]*place[O, P, R]
	byPartner rosters[P, *place[O, P, R]]
	rows      slots[R]
}

// place is that of a row.
type place[O, P comparable, R any] struct {
	key       placeKey[O, P]
	row       *R
	slot      int32
	ofOwner   seat[*place[O, P, R]]
	ofPartner seat[*place[O, P, R]]
}

func newTable[O, P comparable, R any]() table[O, P, R] {
	return table[O, P, R]{byKey: map[placeKey[O, P]]*place[O, P, R]{}, byPartner: rosters[P, *place[O, P, R]]{}}
}

// get returns the row of a pair, or nil.
func (p *table[O, P, R]) get(key placeKey[O, P]) *R {
	if x := p.byKey[key]; x != nil {
		return x.row
	}
	return nil
}

// put adds or replaces the row of a pair; ofOwner is the roster of the owner.
func (p *table[O, P, R]) put(ofOwner *roster[*place[O, P, R]], key placeKey[O, P], row *R) {
	if x := p.byKey[key]; x != nil {
		p.replace(x, row)
		return
	}
	x := &place[O, P, R]{key: key, row: row, slot: p.rows.put(row)}
	x.ofOwner.member, x.ofPartner.member = x, x
	p.byKey[key] = x
	ofOwner.join(&x.ofOwner)
	p.byPartner.join(key.partner, &x.ofPartner)
}

// replace replaces the row of a pair that is there.
func (p *table[O, P, R]) replace(x *place[O, P, R], row *R) {
	x.row = row
	p.rows.set(x.slot, row)
}

// remove takes a pair out, if it is there, and returns its row.
func (p *table[O, P, R]) remove(ofOwner *roster[*place[O, P, R]], key placeKey[O, P]) *R {
	x := p.byKey[key]
	if x == nil {
		return nil
	}
	delete(p.byKey, key)
	ofOwner.leave(&x.ofOwner)
	p.byPartner.leave(key.partner, &x.ofPartner)
	p.rows.drop(x.slot)
	return x.row
}

// ofPartner adds the rows of a partner to rows.
func (p *table[O, P, R]) ofPartner(partner P, rows []*R) []*R {
	for x := p.byPartner[partner]; x != nil; x = x.next {
		rows = append(rows, x.member.row)
	}
	return rows
}

// collect adds the rows of a roster of places to rows.
func collect[O, P comparable, R any](r roster[*place[O, P, R]], rows []*R) []*R {
	for s := r.first; s != nil; s = s.next {
		rows = append(rows, s.member.row)
	}
	return rows
}
