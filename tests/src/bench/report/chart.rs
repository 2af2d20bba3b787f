//! The chart: for each path how the cost of a connection grows with the number of Services.

use std::path::Path as File;

use anyhow::{Context as _, Result, anyhow};
use plotters::{
    chart::{ChartBuilder, SeriesLabelPosition},
    coord::Shift,
    drawing::{DrawingArea, IntoDrawingArea as _},
    element::{Circle, PathElement},
    prelude::{IntoLogRange as _, SVGBackend},
    series::LineSeries,
    style::{BLACK, Color as _, RGBColor, WHITE},
};

use super::{is_measured, traffic::find};
use crate::bench::{contender::Contender, ends::Workload, target::Path, traffic::Traffic};

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Above this a line leaves its panel: what matters is close to 1.
const HIGHEST: f64 = 2.5;
const LOWEST: f64 = 0.9;
const SIZE: (u32, u32) = (1280, 640);

const LINES: [(Contender, RGBColor); 9] = [
    (Contender::Iptables, RGBColor(204, 51, 17)),
    (Contender::IptablesLegacy, RGBColor(221, 170, 51)),
    (Contender::Nftables, RGBColor(238, 119, 51)),
    (Contender::ShuntAll, RGBColor(0, 119, 187)),
    (Contender::ShuntHost, RGBColor(51, 187, 238)),
    (Contender::ShuntOff, RGBColor(0, 153, 136)),
    (Contender::ShuntXdp, RGBColor(170, 51, 119)),
    (Contender::ShuntDsr, RGBColor(120, 120, 40)),
    (Contender::ShuntDsrXdp, RGBColor(110, 110, 110)),
];

/// Draws it into a file.
pub(super) fn draw(traffic: &Traffic, file: &File) -> Result<()> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
    for (panel, path) in area.split_evenly((2, 4)).iter().zip(Path::USUAL) {
        // The library's errors borrow from the area.
        draw_panel(panel, traffic, path).map_err(|error| anyhow!("draw {}: {error}", path.name()))?;
    }
    area.present().map_err(|error| anyhow!("{error}")).with_context(|| format!("write {}", file.display()))
}

fn draw_panel(panel: &Panel<'_>, traffic: &Traffic, path: Path) -> Result<()> {
    let fewest = traffic.runs.first().map_or(10, |run| run.services);
    let most = traffic.runs.last().map_or(50_000, |run| run.services).max(fewest + 1);
    let mut chart = ChartBuilder::on(panel)
        .caption(path.name(), ("sans-serif", 18))
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(36)
        .build_cartesian_2d((fewest..most).log_scale(), LOWEST..HIGHEST)?;
    chart.configure_mesh().x_desc("Services").y_desc("× direct").x_labels(4).y_labels(8).draw()?;
    for (contender, colour) in LINES {
        let points: Vec<(u32, f64)> = traffic
            .runs
            .iter()
            .filter_map(|run| Some((run.services, find(run, path, Workload::TcpConnect, contender)?)))
            .filter(|(_, cell)| is_measured(cell))
            .map(|(services, cell)| (services, cell.to_direct.clamp(LOWEST, HIGHEST)))
            .collect();
        if points.is_empty() {
            continue;
        }
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 2, colour.filled())))?;
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(contender.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}
