package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/patchbay-proxy/patchbay/core/config"
)

// maxFormatted is how much fmt reads from standard input, in bytes.
const maxFormatted = 64 << 20

func newFmtCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fmt [PATH...]",
		Short: "Lay configuration files out in the canonical way",
		Long: `Lay configuration files out in the canonical way, each a file or a folder of
*.hcl, and print the names of those that changed. A path of - reads standard input
and writes standard output. Without a path: the default place of the configuration.`,
	}
	check := cmd.Flags().Bool("check", false, "change nothing; exit code 1 if a file would change")
	cmd.RunE = action(func(cmd *cobra.Command, args []string) error {
		if slices.Contains(args, "-") {
			if len(args) > 1 {
				return usageError{"- stands alone"}
			}
			return formatStream(cmd, *check)
		}
		if len(args) == 0 {
			args = []string{config.DefaultPlaces(os.Geteuid()).Config}
		}
		return formatPaths(cmd, args, *check)
	})
	return cmd
}

// formatStream formats standard input; with check it only tells whether that
// would change anything.
func formatStream(cmd *cobra.Command, check bool) error {
	src, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxFormatted+1))
	if err != nil {
		return fmt.Errorf("reading standard input: %w", err)
	}
	if len(src) > maxFormatted {
		return fmt.Errorf("standard input is larger than %d MiB", maxFormatted>>20)
	}
	out, err := formatted(cmd.ErrOrStderr(), "<stdin>", src)
	if err != nil {
		return err
	}
	if check {
		if !bytes.Equal(src, out) {
			return errQuiet
		}
		return nil
	}
	_, err = cmd.OutOrStdout().Write(out)
	return err
}

// formatPaths goes on after a file that can't be formatted, and fails in the
// end.
func formatPaths(cmd *cobra.Command, paths []string, check bool) error {
	files, err := hclFiles(paths)
	if err != nil {
		return err
	}
	var failed error
	for _, path := range files {
		changed, err := formatFile(cmd.ErrOrStderr(), path, check)
		switch {
		case errors.Is(err, errQuiet):
			failed = errQuiet
		case err != nil:
			return err
		case changed:
			fmt.Fprintln(cmd.OutOrStdout(), path)
			if check {
				failed = errQuiet
			}
		}
	}
	return failed
}

// hclFiles gives the files that paths name, of a folder its *.hcl.
func hclFiles(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !e.IsDir() && filepath.Ext(e.Name()) == ".hcl" && !strings.HasPrefix(e.Name(), ".") {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
	}
	return files, nil
}

// formatFile puts the canonical layout in the place of a file's, in one step,
// and tells whether it differs.
func formatFile(stderr io.Writer, path string, check bool) (changed bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() {
		return false, fmt.Errorf("%s is not a regular file", path)
	}
	src, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	out, err := formatted(stderr, path, src)
	if err != nil || bytes.Equal(src, out) {
		return false, err
	}
	if check {
		return true, nil
	}
	// A link stays a link: what it leads to is replaced.
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false, err
	}
	return true, replaceFile(real, out, info.Mode().Perm())
}

func replaceFile(path string, data []byte, mode os.FileMode) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), ".patchbay-fmt-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	_, err = temporary.Write(data)
	err = errors.Join(err, temporary.Chmod(mode), temporary.Sync(), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// formatted gives the canonical layout, or prints what is wrong.
func formatted(stderr io.Writer, name string, src []byte) ([]byte, error) {
	out, diagnostics := config.Format(name, src)
	if diagnostics.HasErrors() {
		_ = diagnostics.WriteText(stderr, isTerminal(stderr))
		return nil, errQuiet
	}
	return out, nil
}
