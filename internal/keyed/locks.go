package keyed

// locks are the locks of one volume: none, one, or an index of several.
type locks struct {
	one  *Lock
	more index
}

// meeting returns a lock that key meets, or nil. It needs a few map look-ups, however many locks there are.
func (c locks) meeting(key Key) *Lock {
	switch {
	case c.more != nil:
		return c.more.meeting(key)
	case c.one != nil && c.one.Key().Meets(key):
		return c.one
	}
	return nil
}

func (c locks) isEmpty() bool { return c.one == nil && len(c.more) == 0 }

func (c locks) with(lock *Lock) locks {
	if c.isEmpty() {
		return locks{one: lock}
	}
	if c.more == nil {
		c.more = index{}
		c.more.add(c.one)
		c.one = nil
	}
	c.more.add(lock)
	return c
}

func (c locks) without(lock *Lock) locks {
	if c.one != nil {
		return locks{}
	}
	c.more.remove(lock)
	return c
}

// podAndNode is a key without its volume.
type podAndNode struct{ pod, node string }

// indexKey is an entry of the index: by pod, by node, by both or by neither.
type indexKey struct {
	podAndNode
	byPod, byNode bool
}

// index holds each lock of a volume under its four keys. A lock of all pods, or nodes, has an empty pod, or node,
// there.
type index map[indexKey]map[*Lock]struct{}

func (x index) meeting(key Key) *Lock {
	for _, pod := range meetingNames(key.Pod) {
		for _, node := range meetingNames(key.Node) {
			for lock := range x[indexKey{podAndNode{pod, node}, key.Pod != "", key.Node != ""}] {
				return lock
			}
		}
	}
	return nil
}

// meetingNames returns the names in the index that meet name.
func meetingNames(name string) []string {
	if name == "" {
		return []string{""}
	}
	return []string{name, ""}
}

func (x index) add(c *Lock) {
	for _, h := range indexKeysOf(c.Key()) {
		if x[h] == nil {
			x[h] = map[*Lock]struct{}{}
		}
		x[h][c] = struct{}{}
	}
}

func (x index) remove(c *Lock) {
	for _, h := range indexKeysOf(c.Key()) {
		delete(x[h], c)
		if len(x[h]) == 0 {
			delete(x, h)
		}
	}
}

func indexKeysOf(key Key) [4]indexKey {
	return [4]indexKey{
		{podAndNode{key.Pod, key.Node}, true, true}, {podAndNode{pod: key.Pod}, true, false}, {podAndNode{node: key.Node}, false, true}, {},
	}
}
