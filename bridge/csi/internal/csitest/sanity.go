package csitest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/stretchr/testify/require"
)

// Run configures a run of csi-sanity.
type Run struct {
	// Socket is the absolute path of the driver's socket.
	Socket string
	// Dir is an absolute directory for target and staging paths.
	Dir string
	// Block selects block volumes.
	Block bool
	// AttachLimit adds the specs that attach more volumes than the node can have.
	AttachLimit bool
	// Size and ExpandedSize are the sizes of volumes, in bytes.
	Size, ExpandedSize int64
	// Parameters are the class parameters of volumes.
	Parameters map[string]string
}

// Result has the results of the specs.
type Result struct {
	Passed int
	// Failed has the text and the failure of each failed spec.
	Failed []string
	// Skipped has the texts of the skipped specs.
	Skipped []string
}

// envRun is the environment variable with the Run, in the process that runs csi-sanity.
const envRun = "VOLUMEKIT_CSI_SANITY"

// Main does nothing in the test binary. In the process that [Sanity] starts, it runs csi-sanity and never returns. Call
// it first in TestMain.
func Main() {
	encoded, ok := os.LookupEnv(envRun)
	if !ok {
		return
	}
	var run Run
	if err := json.Unmarshal([]byte(encoded), &run); err != nil {
		fmt.Fprintln(os.Stderr, "csitest:", err)
		os.Exit(1)
	}
	testing.Main(func(string, string) (bool, error) { return true, nil },
		[]testing.InternalTest{{Name: "Sanity", F: func(t *testing.T) { sanity.Test(t, run.config()) }}}, nil, nil)
}

func (r Run) config() sanity.TestConfig {
	config := sanity.NewTestConfig()
	config.Address = "unix:" + r.Socket
	config.TargetPath, config.StagingPath = filepath.Join(r.Dir, "target"), filepath.Join(r.Dir, "staging")
	config.TestVolumeSize, config.TestVolumeExpandSize = r.Size, r.ExpandedSize
	config.TestNodeVolumeAttachLimit = r.AttachLimit
	config.TestVolumeParameters = r.Parameters
	if r.Block {
		config.TestVolumeAccessType = "block"
	}
	return config
}

// Sanity runs csi-sanity. It skips the specs of services whose names are in absent.
func Sanity(t *testing.T, run Run) Result {
	t.Helper()
	encoded, err := json.Marshal(run)
	require.NoError(t, err)
	report := filepath.Join(run.Dir, "report.json")
	// The binary's path may not exist in the mount namespace of the test.
	command := exec.CommandContext(t.Context(), "/proc/self/exe", "-ginkgo.json-report="+report, "-ginkgo.succinct", "-ginkgo.no-color")
	command.Env = append(os.Environ(), envRun+"="+string(encoded))
	output, err := command.CombinedOutput()
	result, reading := read(report)
	require.NoError(t, reading, "csi-sanity: %v\n%s", err, output)
	if err != nil || len(result.Failed) > 0 {
		t.Errorf("csi-sanity: %v: %q\n%s", err, result.Failed, output)
	}
	return result
}

// read reads ginkgo's report.
func read(path string) (Result, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return Result{}, err
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText            string
			State                   string
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(content, &suites); err != nil {
		return Result{}, err
	}
	var result Result
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			text := strings.Join(append(slices.Clone(spec.ContainerHierarchyTexts), spec.LeafNodeText), " ")
			switch {
			case spec.LeafNodeType != "It", spec.State == "pending":
			case spec.State == "passed":
				result.Passed++
			case spec.State == "skipped":
				result.Skipped = append(result.Skipped, text)
			default:
				result.Failed = append(result.Failed, text+": "+spec.Failure.Message)
			}
		}
	}
	return result, nil
}
