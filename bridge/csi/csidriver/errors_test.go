package csidriver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/volume"
)

var (
	headings = regexp.MustCompile(`(?m)^#+ (.*)$`)
	codeRows = regexp.MustCompile(`(?m)^\|[^|]*\| (\d+) ([A-Z_]+) \|`)
)

// specRows returns the rows of the specification's tables of errors, as method and code; without a method where it is for all.
func specRows(t *testing.T) []rule {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/container-storage-interface/spec").Output()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "spec.md"))
	require.NoError(t, err)
	var rows []rule
	marks := headings.FindAllStringSubmatchIndex(string(text), -1)
	for i, mark := range marks {
		end := len(text)
		if i+1 < len(marks) {
			end = marks[i+1][0]
		}
		title := string(text[mark[2]:mark[3]])
		method, isMethod := strings.CutSuffix(title, " Errors")
		if !isMethod && title != "Error Scheme" {
			continue
		}
		if !isMethod {
			method = ""
		}
		for _, row := range codeRows.FindAllStringSubmatch(string(text[mark[1]:end]), -1) {
			code, err := strconv.Atoi(row[1])
			require.NoError(t, err)
			rows = append(rows, rule{method: method, code: codes.Code(code)}) //nolint:gosec // It is below 17.
		}
	}
	return rows
}

// The table has each row of the specification, and no other but gRPC's own.
func TestTheTableOfErrorsIsThatOfTheSpecification(t *testing.T) {
	wanted := map[string]bool{}
	for _, row := range specRows(t) {
		wanted[row.method+" "+row.code.String()] = true
	}
	require.Greater(t, len(wanted), 50)
	seen := map[string]bool{}
	for _, row := range rules {
		key := row.method + " " + row.code.String()
		assert.False(t, seen[key], "%q is there twice", key)
		seen[key] = true
	}
	for key := range wanted {
		assert.True(t, seen[key], "%q is in the specification alone", key)
	}
	for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted} {
		delete(seen, " "+code.String())
	}
	for key := range seen {
		assert.True(t, wanted[key], "%q is in the table alone", key)
	}
}

// A code that the specification gives no meaning says nothing, and so do those that gRPC itself answers with.
func TestCodesThatMeanNothingAreUncertain(t *testing.T) {
	for _, method := range []string{"CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume"} {
		for _, code := range []codes.Code{codes.Unknown, codes.Internal, codes.DataLoss, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted, codes.Aborted, 42} {
			err := newCallError(t.Context(), "d", method, status.Error(code, "no"), volume.Secrets{})
			require.ErrorIs(t, err, volume.ErrUncertain, "%s %s", method, code)
		}
	}
	err := newCallError(t.Context(), "d", "NodePublishVolume", status.Error(codes.OutOfRange, "no"), volume.Secrets{})
	require.ErrorIs(t, err, volume.ErrUncertain, "it has a meaning for other calls alone")
}

func TestWhatErrorsMatch(t *testing.T) {
	for _, c := range []struct {
		method    string
		code      codes.Code
		is        error
		uncertain bool
	}{
		{"DeleteVolume", codes.FailedPrecondition, volume.ErrInUse, false},
		{"ControllerPublishVolume", codes.FailedPrecondition, volume.ErrInUse, false},
		{"ControllerPublishVolume", codes.ResourceExhausted, volume.ErrAttachLimit, true},
		{"ControllerExpandVolume", codes.OutOfRange, volume.ErrInfeasible, false},
		{"NodeExpandVolume", codes.FailedPrecondition, volume.ErrInUse, false},
		{"NodePublishVolume", codes.AlreadyExists, volume.ErrUncertain, true},
	} {
		err := fmt.Errorf("wrapped: %w", newCallError(t.Context(), "d", c.method, status.Error(c.code, "no"), volume.Secrets{}))
		assert.ErrorIs(t, err, c.is, "%s %s", c.method, c.code)
		assert.Equal(t, c.uncertain, isUncertain(err), "%s %s", c.method, c.code)
	}
	for _, code := range []codes.Code{codes.InvalidArgument, codes.OutOfRange, codes.NotFound, codes.Unimplemented} {
		err := newCallError(t.Context(), "d", "CreateVolume", status.Error(code, "no"), volume.Secrets{})
		for _, says := range []error{volume.ErrInfeasible, volume.ErrInvalid, volume.ErrUnsupported, volume.ErrUncertain} {
			assert.NotErrorIs(t, err, says, "%s: it says nothing of earlier attempts", code)
		}
	}
}

func TestWhatADriverSaysIsCutAndHasNoSecrets(t *testing.T) {
	err := newCallError(t.Context(), "d", "NodeStageVolume", status.Error(codes.Internal, "pass hunter2-hunter2 \n"+strings.Repeat("a", 10_000)),
		volume.NewSecrets("hunter2-hunter2"))
	assert.NotContains(t, err.Error(), "hunter2")
	assert.NotContains(t, err.Error(), "\n")
	assert.Less(t, len(err.Error()), 700)
	assert.Contains(t, err.Error(), `driver "d": NodeStageVolume: Internal`)
}

func TestABusyDriverIsToldAsBusy(t *testing.T) {
	err := newCallError(t.Context(), "d", "NodeStageVolume", status.Error(codes.Aborted, "pending"), volume.Secrets{})
	assert.Contains(t, err.Error(), "busy")
	assert.True(t, isBusy(err))
	assert.False(t, isBusy(newCallError(t.Context(), "d", "ListVolumes", status.Error(codes.Aborted, "token"), volume.Secrets{})))
}
