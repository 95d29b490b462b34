package crashstore_test

import (
	"os"
	"testing"

	"github.com/volumekit/volumekit/internal/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Run(m)) }
