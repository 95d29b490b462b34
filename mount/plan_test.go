package mount

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPlanSortsOptions(t *testing.T) {
	request := Request{
		Source: "server:/export", Target: "/t//x/", FSType: "nfs",
		Options:   []string{"ro", "nosuid", "vers=4.2", "suid", "defaults", "hard", "_netdev", "rslave", "noatime", "atime", "ro"},
		Sensitive: []string{"password=a,b"},
	}
	plan, err := request.Plan()
	require.NoError(t, err)
	assert.Equal(t, "/t/x", plan.Target)
	assert.Equal(t, []string{"ro"}, plan.Set)
	assert.Equal(t, []string{"nosuid", "noatime"}, plan.Clear)
	assert.Equal(t, []string{"vers=4.2", "hard", "password=a,b"}, plan.Data)
	assert.Equal(t, "rslave", plan.Propagation)
	assert.True(t, plan.ReadOnly())
	assert.False(t, plan.Bind)
}

func TestPlanLastWordWins(t *testing.T) {
	for last, want := range map[string]bool{"ro": true, "rw": false} {
		plan, err := Request{Source: "/s", Target: "/t", Options: []string{"rbind", "rw", "ro", last}}.Plan()
		require.NoError(t, err)
		assert.Equal(t, want, plan.ReadOnly(), last)
		assert.True(t, plan.Bind && plan.Recursive)
		assert.Equal(t, "private", plan.Propagation)
	}
}

func TestPlanHasOneOptionForAccessTimes(t *testing.T) {
	options := []string{"noatime", "strictatime", "nodev", "atime", "relatime"}
	plan, err := Request{Target: "/t", FSType: "tmpfs", Options: options}.Plan()
	require.NoError(t, err)
	assert.Equal(t, []string{"nodev", "relatime"}, plan.Set)
	assert.Equal(t, []string{"noatime"}, plan.Clear)
}

func TestPlanOfRemountLeavesPropagation(t *testing.T) {
	plan, err := Request{Target: "/t", Options: []string{"remount", "ro"}}.Plan()
	require.NoError(t, err)
	assert.Empty(t, plan.Propagation)
	assert.True(t, plan.Remount)
}

func TestPlanErrorsHoldNoSecret(t *testing.T) {
	_, err := Request{Target: "/t", FSType: "cifs", Sensitive: []string{"password=canary\n"}}.Plan()
	require.ErrorIs(t, err, ErrInvalid)
	assert.NotContains(t, err.Error(), "canary")
}

func TestScrubRemovesOptionsAndTheirValues(t *testing.T) {
	plan, err := Request{Target: "/t", FSType: "cifs", Sensitive: []string{"password=canary", "token"}}.Plan()
	require.NoError(t, err)
	assert.Equal(t, "cifs: bad *** near *** and ***", plan.scrub("cifs: bad password=canary near canary and token"))
}
