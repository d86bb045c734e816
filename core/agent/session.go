package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/patchbay-proxy/patchbay/core/state"
)

const (
	sessionKind    = "session"
	sessionVersion = 1
	sessionName    = "session.json"
)

type savedSession struct {
	Number uint64 `json:"number"`
}

// nextSession gives the session number of this start, higher than that of
// every start before, and saves it. A damaged file comes back as a warning: the
// number then comes from the clock, as it does at the very first start, so that
// it is still the highest.
func nextSession(dir string) (number uint64, warning error, err error) {
	path := filepath.Join(dir, sessionName)
	var saved savedSession
	var damaged *state.DamagedError
	err = state.Read(path, sessionKind, sessionVersion, &saved)
	switch {
	case errors.As(err, &damaged):
		warning = fmt.Errorf("the session number is taken from the clock: %w", damaged)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return 0, nil, err
	}
	saved.Number = max(saved.Number+1, uint64(time.Now().UnixMilli()))
	if err := state.Write(path, sessionKind, sessionVersion, saved); err != nil {
		return 0, nil, fmt.Errorf("the number of this start can't be saved, and without it plugins could not tell this agent from an old one that still hangs: %w", err)
	}
	return saved.Number, warning, nil
}
