package outcome

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheErrorOfALostCall(t *testing.T) {
	done := make(chan struct{})
	cause := errors.New("cause")
	lost := NewAbandonedError("umount2", "/mnt", cause, done)
	require.ErrorIs(t, lost, ErrUncertain)
	require.ErrorIs(t, lost, cause)
	assert.Equal(t, Uncertain, ClassOf(lost))
	assert.Equal(t, `umount2 of "/mnt" has not returned and was abandoned: cause`, lost.Error())
	assert.Len(t, Running(lost), 1)
	look := NewAbandonedRead("GetPath", cause, done)
	assert.Equal(t, "GetPath has not returned and was abandoned: cause", look.Error())
	assert.Equal(t, Final, ClassOf(look))
	require.NotErrorIs(t, look, ErrUncertain)
	assert.Len(t, Running(look), 1)
}
