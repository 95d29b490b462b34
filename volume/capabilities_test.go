package volume

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCapabilitiesOf(t *testing.T) {
	assert.Zero(t, CapabilitiesOf(&plain{}))
	assert.Equal(t, AllCapabilities, CapabilitiesOf(newAble("example.com/a")))

	narrowed := newAble("example.com/a")
	narrowed.capabilities = CapDelete | CapProvision
	assert.Equal(t, CapDelete|CapProvision, CapabilitiesOf(narrowed))
	narrowed.capabilities = CapAttach
	assert.Zero(t, CapabilitiesOf(narrowed), "attaching needs staging")
	narrowed.capabilities = CapSnapshot | CapListSnapshots | CapGroupSnapshot | CapClone | CapCapacity
	assert.Zero(t, CapabilitiesOf(narrowed), "copies, snapshots and capacity need provisioning")
	narrowed.capabilities = CapProvision | CapListSnapshots | CapGroupSnapshot
	assert.Equal(t, CapProvision, CapabilitiesOf(narrowed), "groups and lists need snapshots")
}

type boasting struct{ plain }

func (*boasting) Capabilities() Capabilities { return AllCapabilities }

type noOptions struct{ plain }

func (*noOptions) SupportsMountOption() bool { return false }

func TestCapabilitiesComeFromTheType(t *testing.T) {
	assert.Zero(t, CapabilitiesOf(&boasting{}), "a plugin cannot claim what its type does not have")
	assert.Zero(t, CapabilitiesOf(&noOptions{}))
}

func TestCapabilityNames(t *testing.T) {
	assert.Len(t, capabilityNames, bits.OnesCount32(uint32(AllCapabilities)))
	assert.Equal(t, "none", Capabilities(0).String())
	assert.Equal(t, "persistent", CapPersistent.String())
	assert.Equal(t, "bulk-verify", CapBulkVerify.String())
	assert.Equal(t, "delete,attach", (CapAttach | CapDelete).String())
	assert.True(t, (CapAttach | CapDelete).Has(CapAttach))
	assert.False(t, CapAttach.Has(CapAttach|CapDelete))
}
