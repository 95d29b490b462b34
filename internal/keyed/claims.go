package keyed

// claims are those of one volume: none, one, or an index of several.
type claims struct {
	one  *Claim
	more *index
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

// meetingClaim is meeting for a claim that is to be made.
func (c claims) meetingClaim(claim *Claim) *Claim {
	if c.isEmpty() {
		return nil
	}
	return c.meeting(claim.Key())
}

func (c claims) isEmpty() bool { return c.one == nil && c.more == nil }

func (c claims) with(claim *Claim) claims {
	if c.isEmpty() {
		return claims{one: claim}
	}
	if c.more == nil {
		c.more = newIndex()
		c.more.add(c.one)
		c.one = nil
	}
	c.more.add(claim)
	return c
}

func (c claims) without(claim *Claim) claims {
	if c.more == nil {
		return claims{}
	}
	c.more.remove(claim)
	if c.more.all.first == nil {
		return claims{}
	}
	return c
}

// The lists in which a claim of an index is: that of all, that of its pod and that of its node.
const (
	listOfAll = iota
	listOfPod
	listOfNode
	numberOfLists
)

// links are the places of a claim in the lists of an index.
type links [numberOfLists]link

// index finds the claims of one volume by pod and by node. Claims without a pod are listed under the empty one.
type index struct {
	all           list
	byPod, byNode map[string]list
	exact         map[place]*Claim // Two claims of one key would meet: there is at most one.
}

// place is a key within its volume.
type place struct{ pod, node string }

func newIndex() *index {
	return &index{byPod: map[string]list{}, byNode: map[string]list{}, exact: map[place]*Claim{}}
}

func (x *index) meeting(key Key) *Claim {
	switch {
	case key.Pod == "" && key.Node == "":
		return x.all.first
	case key.Node == "":
		return firstOf(x.byPod[key.Pod].first, x.byPod[""].first)
	case key.Pod == "":
		return firstOf(x.byNode[key.Node].first, x.byNode[""].first)
	}
	return firstOf(x.exact[place{key.Pod, key.Node}], x.exact[place{pod: key.Pod}], x.exact[place{node: key.Node}], x.exact[place{}])
}

func (x *index) add(c *Claim) {
	key := c.Key()
	c.links = &links{}
	x.all = x.all.with(c, listOfAll)
	x.byPod[key.Pod] = x.byPod[key.Pod].with(c, listOfPod)
	x.byNode[key.Node] = x.byNode[key.Node].with(c, listOfNode)
	x.exact[place{key.Pod, key.Node}] = c
}

func (x *index) remove(c *Claim) {
	key := c.Key()
	x.all = x.all.without(c, listOfAll)
	keep(x.byPod, key.Pod, x.byPod[key.Pod].without(c, listOfPod))
	keep(x.byNode, key.Node, x.byNode[key.Node].without(c, listOfNode))
	delete(x.exact, place{key.Pod, key.Node})
	c.links = nil
}

func keep(lists map[string]list, name string, l list) {
	if l.first == nil {
		delete(lists, name)
		return
	}
	lists[name] = l
}

// list is a chain of claims, linked through the claims themselves.
type list struct{ first *Claim }

// link is the place of a claim in one list.
type link struct{ before, after *Claim }

func (l list) with(c *Claim, which int) list {
	c.links[which] = link{after: l.first}
	if l.first != nil {
		l.first.links[which].before = c
	}
	return list{first: c}
}

func (l list) without(c *Claim, which int) list {
	at := c.links[which]
	c.links[which] = link{}
	if at.after != nil {
		at.after.links[which].before = at.before
	}
	if at.before != nil {
		at.before.links[which].after = at.after
		return l
	}
	return list{first: at.after}
}

func firstOf(claims ...*Claim) *Claim {
	for _, c := range claims {
		if c != nil {
			return c
		}
	}
	return nil
}
