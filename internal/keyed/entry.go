package keyed

// meeting returns a claim that key meets, or nil. Each case is a few map look-ups, whatever the number of claims.
func (e *entry) meeting(key Key) *Claim {
	switch {
	case e == nil || len(e.all) == 0:
		return nil
	case key.Pod == "" && key.Node == "":
		return e.all.any()
	case key.Node == "":
		return first(e.byPod[key.Pod], e.byPod[""])
	case key.Pod == "":
		return first(e.byNode[key.Node], e.byNode[""])
	}
	v := key.Volume
	return first(e.byBoth[key], e.byBoth[Key{Volume: v, Pod: key.Pod}], e.byBoth[Key{Volume: v, Node: key.Node}], e.byBoth[Key{Volume: v}])
}

func (e *entry) add(c *Claim) {
	e.all[c] = struct{}{}
	put(e.byPod, c.Key.Pod, c)
	put(e.byNode, c.Key.Node, c)
	put(e.byBoth, c.Key, c)
}

func (e *entry) remove(c *Claim) {
	delete(e.all, c)
	take(e.byPod, c.Key.Pod, c)
	take(e.byNode, c.Key.Node, c)
	take(e.byBoth, c.Key, c)
}

func put[K comparable](index map[K]set, key K, c *Claim) {
	if index[key] == nil {
		index[key] = set{}
	}
	index[key][c] = struct{}{}
}

func take[K comparable](index map[K]set, key K, c *Claim) {
	delete(index[key], c)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}

func first(sets ...set) *Claim {
	for _, s := range sets {
		if c := s.any(); c != nil {
			return c
		}
	}
	return nil
}

// any returns one claim of the set, or nil.
func (s set) any() *Claim {
	for c := range s {
		return c
	}
	return nil
}
