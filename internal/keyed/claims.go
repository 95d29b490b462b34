package keyed

// claims are those of one volume: none, one, or an index of several.
type claims struct {
	one  *Claim
	more index
}

// meeting returns a claim that key meets, or nil. It is a few map look-ups at most, whatever the number of claims.
func (c claims) meeting(key Key) *Claim {
	switch {
	case c.more != nil:
		return c.more.meeting(key)
	case c.one != nil && c.one.Key().Meets(key):
		return c.one
	}
	return nil
}

func (c claims) isEmpty() bool { return c.one == nil && len(c.more) == 0 }

func (c claims) with(claim *Claim) claims {
	if c.isEmpty() {
		return claims{one: claim}
	}
	if c.more == nil {
		c.more = index{}
		c.more.add(c.one)
		c.one = nil
	}
	c.more.add(claim)
	return c
}

func (c claims) without(claim *Claim) claims {
	if c.one != nil {
		return claims{}
	}
	c.more.remove(claim)
	return c
}

// place is a key within its volume.
type place struct{ pod, node string }

// heading is where claims of a volume are found: by pod, by node, by both or by none.
type heading struct {
	place
	byPod, byNode bool
}

// index holds each claim of a volume under all of its four headings. A claim of all pods, or nodes, has the empty name there.
type index map[heading]map[*Claim]struct{}

func (x index) meeting(key Key) *Claim {
	for _, pod := range meetingNames(key.Pod) {
		for _, node := range meetingNames(key.Node) {
			for claim := range x[heading{place{pod, node}, key.Pod != "", key.Node != ""}] {
				return claim
			}
		}
	}
	return nil
}

// meetingNames returns the names of claims that meet one of name.
func meetingNames(name string) []string {
	if name == "" {
		return []string{""}
	}
	return []string{name, ""}
}

func (x index) add(c *Claim) {
	for _, h := range headingsOf(c.Key()) {
		if x[h] == nil {
			x[h] = map[*Claim]struct{}{}
		}
		x[h][c] = struct{}{}
	}
}

func (x index) remove(c *Claim) {
	for _, h := range headingsOf(c.Key()) {
		delete(x[h], c)
		if len(x[h]) == 0 {
			delete(x, h)
		}
	}
}

func headingsOf(key Key) [4]heading {
	return [4]heading{
		{place{key.Pod, key.Node}, true, true}, {place{pod: key.Pod}, true, false}, {place{node: key.Node}, false, true}, {},
	}
}
