package state

import (
	"errors"
	"slices"
	"testing"
)

func TestTroubles(t *testing.T) {
	var none *Troubles
	none.Damaged("x", errors.New("y"))
	none.Written("/a", errors.New("y"))
	if damaged, failing := none.List(); damaged != nil || failing != nil {
		t.Errorf("%v %v", damaged, failing)
	}
	var troubles Troubles
	troubles.Damaged("it is done without", errors.New("/c is damaged"))
	troubles.Written("/b", errors.New("disk full"))
	troubles.Written("/a", errors.New("disk full"))
	troubles.Written("/a", errors.New("disk gone"))
	damaged, failing := troubles.List()
	if !slices.Equal(damaged, []string{"it is done without: /c is damaged"}) ||
		!slices.Equal(failing, []string{"/a can't be written: disk gone", "/b can't be written: disk full"}) {
		t.Errorf("%q %q", damaged, failing)
	}
	troubles.Written("/a", nil)
	troubles.Written("/b", nil)
	if _, failing := troubles.List(); len(failing) > 0 {
		t.Errorf("%q after the writes went well", failing)
	}
}
