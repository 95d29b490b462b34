package loop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func attachedRow(seq, ino uint64) row {
	return row{seq: seq, state: rowAttached, id: identity{dev: 1, ino: ino}}
}

func TestTableIsCompleteOnlyWithoutGaps(t *testing.T) {
	r := newRows()
	assert.False(t, r.isKnown())
	assert.False(t, r.setOwn(0, attachedRow(10, 1)), "nothing was looked at yet")
	r.scanned(10, nil, []int{0})
	assert.True(t, r.isKnown())
	assert.True(t, r.complete(10))
	assert.True(t, r.setOwn(1, attachedRow(11, 2)), "the next one")
	assert.True(t, r.setOwn(1, row{seq: 12}), "and its detachment")
	assert.False(t, r.setOwn(2, attachedRow(14, 3)), "another program made change 13")
	assert.False(t, r.setOwn(3, attachedRow(15, 4)), "which is still not known")
	assert.False(t, r.complete(14))
	r.scanned(14, nil, []int{0, 1, 2, 3})
	assert.True(t, r.complete(14))
	assert.False(t, r.complete(15), "that look was not made after 15")
	r.scanned(3, nil, nil)
	assert.True(t, r.complete(14), "an older look takes nothing away")
	assert.False(t, r.complete(0), "a kernel without numbers")
	assert.False(t, r.setOwn(4, row{}))
}

func TestTableKeepsWhatIsNewer(t *testing.T) {
	r := newRows()
	r.put(5, attachedRow(20, 1))
	r.put(5, attachedRow(19, 2))
	having, _ := r.with(identity{dev: 1, ino: 1})
	assert.Equal(t, []int{5}, having)
	r.put(5, row{seq: 21})
	having, _ = r.with(identity{dev: 1, ino: 1})
	assert.Empty(t, having)
	r.put(6, row{seq: 22, state: rowSilent})
	_, silent := r.with(identity{})
	assert.Equal(t, []int{6}, silent)
}

func TestTableForgetsRemovedDevices(t *testing.T) {
	r := newRows()
	r.put(1, attachedRow(1, 1))
	r.put(2, attachedRow(2, 2))
	before := r.snapshot()
	r.put(3, attachedRow(3, 3)) // after the look began
	r.put(2, attachedRow(4, 4)) // likewise
	r.scanned(0, before, []int{7})
	_, ok := r.get(1)
	assert.False(t, ok)
	for _, number := range []int{2, 3} {
		_, ok := r.get(number)
		assert.True(t, ok, number)
	}
}

func TestTableKeepsOneDetachmentWhoseNumberIsNotKnown(t *testing.T) {
	r := newRows()
	c := newChanges(r, nil)
	assert.Equal(t, noDevice, c.takePending())
	r.put(1, attachedRow(8, 1))
	c.detached(1, 8)
	having, _ := r.with(identity{dev: 1, ino: 1})
	assert.Empty(t, having)
	assert.Equal(t, 1, c.takePending())
	assert.Equal(t, noDevice, c.takePending(), "once")
	r.put(1, attachedRow(12, 2)) // another process was faster
	c.detached(1, 8)
	having, _ = r.with(identity{dev: 1, ino: 2})
	assert.Equal(t, []int{1}, having, "a newer attachment is not taken for the one that has ended")
}

func TestAChangeDoesNotWaitLongForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChanges(newRows(), nil)
		end := c.begin(t.Context())
		start := time.Now()
		c.begin(t.Context())()
		assert.Equal(t, changeLimit, time.Since(start), "a change that hangs delays no other for ever")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		c.begin(ctx)()
		assert.Equal(t, changeLimit, time.Since(start))
		end()
		c.begin(t.Context())()
		assert.Equal(t, changeLimit, time.Since(start))

		x := newIndex(newRows(), inspector{})
		end, err := x.beginScan(t.Context())
		require.NoError(t, err)
		_, err = x.beginScan(ctx)
		require.ErrorIs(t, err, context.Canceled)
		end()
	})
}

func TestMountsOf(t *testing.T) {
	device := Device{Path: "/dev/loop3", Major: 7, Minor: 3}
	table := "36 35 7:3 / /a\\040b rw,nosuid - ext4 /dev/loop3 rw\n" +
		"37 35 7:30 / /other rw - ext4 /dev/loop30 rw\n" +
		"38 35 0:44 / /btrfs rw shared:3 - btrfs /dev/loop3 rw\n" +
		"short line\n"
	assert.Equal(t, []Holder{{PID: 9, MountPath: "/a b"}, {PID: 9, MountPath: "/btrfs"}}, mountsOf(device, 9, []byte(table)))
}
