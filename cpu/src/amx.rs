//! Sums of products in the tile registers of AMX. A tile register holds sixteen lines. One instruction multiplies
//! sixteen rows of sixteen pairs of bf16 numbers by sixteen rows of sixteen columns, sixteen times as much per cycle as
//! f32 instructions do.

#[cfg(target_arch = "x86_64")]
use std::arch::{
    asm,
    x86_64::{__cpuid, __cpuid_count},
};
use std::marker::PhantomData;
use std::sync::LazyLock;

/// Rows of a block that is summed in tile registers: the lines of a register.
pub(crate) const ROWS: usize = 16;

/// Pairs of bf16 numbers, or f32 numbers, of a line.
const LANES: usize = 16;

const LINE_BYTES: usize = 4 * LANES;

/// Whether the processor has tile registers for bf16, and the operating system lets this process use them.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: LazyLock<bool> = LazyLock::new(is_permitted);
    *AVAILABLE
}

#[cfg(target_arch = "x86_64")]
fn is_permitted() -> bool {
    const BF16_AND_TILES: u32 = 1 << 22 | 1 << 24;
    // Of <asm/prctl.h>: ARCH_REQ_XCOMP_PERM, for the state with this number.
    const REQUEST_PERMISSION: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    __cpuid(0).eax >= 7
        && __cpuid_count(7, 0).edx & BF16_AND_TILES == BF16_AND_TILES
        // SAFETY: the call has no pointers; it fails if the kernel does not know it, or does not save the state.
        && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) } == 0
}

#[cfg(not(target_arch = "x86_64"))]
fn is_permitted() -> bool {
    false
}

/// The tile registers of the calling thread, with the shapes for products of one depth. Registers 0 to 3 are sums, 4
/// and 5 are loaded with sixteen pairs of the depth, and 6 and 7 with those that remain at its end.
#[derive(Debug)]
pub(crate) struct TileRegisters {
    /// Pairs along the depth.
    depth: usize,
    /// They belong to a thread.
    _not_send: PhantomData<*const ()>,
}

/// What `ldtilecfg` loads.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Rows of the left matrix of a product, and where they continue after each panel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// Pairs, the first one that of the block.
    pub(crate) data: &'a [u32],
    /// Pairs from one row to the next.
    pub(crate) stride: usize,
    /// Pairs to skip in a row after each panel.
    pub(crate) panel_skip: usize,
}

impl TileRegisters {
    /// Sets the shapes for products of `depth` pairs.
    ///
    /// # Safety
    /// [`is_available`]. A thread has one such value at a time.
    pub(crate) unsafe fn configure(depth: usize) -> Self {
        let rest = (depth % LANES) as u8;
        let mut shapes =
            Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        shapes.row_bytes[..6].fill(LINE_BYTES as u16);
        shapes.rows[..6].fill(ROWS as u8);
        if rest > 0 {
            (shapes.row_bytes[6], shapes.rows[6]) = (4 * u16::from(rest), ROWS as u8);
            (shapes.row_bytes[7], shapes.rows[7]) = (LINE_BYTES as u16, rest);
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller vouches for the instruction, which reads 64 bytes; the shapes are valid.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly, preserves_flags));
        }
        Self { depth, _not_send: PhantomData }
    }

    /// `out[r][v] = sum over i of left(r, i) panel[i][v]`, of the first `LINES` of the panel's `FULL` lines.
    #[inline(always)]
    pub(crate) fn sum_block<const LINES: usize, const FULL: usize>(
        &self,
        left: Rows<'_>,
        panel: &[[u32; LANES]],
        out: &mut [[f32; LANES]],
    ) {
        assert!(LINES <= FULL && LINES <= 4, "a register per line");
        assert!(panel.len() == self.depth * FULL && out.len() == ROWS * LINES);
        let (steps, rest) = (self.depth / LANES, self.depth % LANES);
        if let Some(last) = self.depth.checked_sub(1) {
            let last = last + last / (FULL * LANES) * left.panel_skip;
            assert!((ROWS - 1) * left.stride + last < left.data.len(), "{} pairs", self.depth);
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this value exists only if the instructions do, and the registers have the shapes of `configure`. The
        // sums are sixteen rows of `LINES` lines. What is read lies within the panel, which has `FULL` lines per pair,
        // and within the sixteen rows on the left, the last element of which was checked above.
        unsafe {
            asm!(
                ".irp line, 0, 1, 2, 3",
                ".if \\line < {lines}",
                "tilezero tmm\\line",
                ".endif",
                ".endr",
                "test {steps}, {steps}",
                "jz 4f",
                "2:",
                "tileloadd tmm4, [{left} + {left_row} * 1]",
                ".irp line, 0, 1, 2, 3",
                ".if \\line < {lines}",
                "tileloadd tmm5, [{right} + {right_row} * 1 + 64 * \\line]",
                "tdpbf16ps tmm\\line, tmm4, tmm5",
                ".endif",
                ".endr",
                "add {left}, 64",
                "add {right}, {right_step}",
                "dec {in_panel}",
                "jnz 3f",
                "add {left}, {panel_skip}",
                "mov {in_panel}, {panel_steps}",
                "3:",
                "dec {steps}",
                "jnz 2b",
                "4:",
                "test {rest}, {rest}",
                "jz 5f",
                "tileloadd tmm6, [{left} + {left_row} * 1]",
                ".irp line, 0, 1, 2, 3",
                ".if \\line < {lines}",
                "tileloadd tmm7, [{right} + {right_row} * 1 + 64 * \\line]",
                "tdpbf16ps tmm\\line, tmm6, tmm7",
                ".endif",
                ".endr",
                "5:",
                ".irp line, 0, 1, 2, 3",
                ".if \\line < {lines}",
                "tilestored [{out} + {out_row} * 1 + 64 * \\line], tmm\\line",
                ".endif",
                ".endr",
                lines = const LINES,
                right_step = const FULL * LANES * LINE_BYTES,
                panel_steps = const FULL,
                left = inout(reg) left.data.as_ptr() => _,
                right = inout(reg) panel.as_ptr() => _,
                out = in(reg) out.as_mut_ptr(),
                left_row = in(reg) left.stride * size_of::<u32>(),
                right_row = in(reg) FULL * LINE_BYTES,
                out_row = in(reg) LINES * LINE_BYTES,
                panel_skip = in(reg) left.panel_skip * size_of::<u32>(),
                in_panel = inout(reg) FULL => _,
                steps = inout(reg) steps => _,
                rest = in(reg) rest,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for TileRegisters {
    /// Registers in use would have to be saved with every switch of threads.
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this value exists only if the instruction does; no register is used after it.
        unsafe {
            asm!("tilerelease", options(nomem, nostack, preserves_flags));
        }
    }
}
